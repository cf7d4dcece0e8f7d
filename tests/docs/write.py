"""`./dev docs`: write the pages that are made from code."""

from __future__ import annotations

from tests.docs.pages import PAGES, ROOT, render


def main() -> None:
    for page in PAGES:
        path = ROOT / page
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(page))
        print(page)


if __name__ == "__main__":
    main()
