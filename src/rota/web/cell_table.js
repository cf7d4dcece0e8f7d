// A table that draws its cells itself. The toolkit makes a new component of a cell's template with every update of a
// page: the browser then replaces all links and buttons, and the one with the keyboard focus loses it.
export default {
  template: `
    <q-table ref="qRef" :columns="columns" :rows="rows">
      <template v-slot:header-selection="props">
        <q-checkbox v-model="props.selected" dense aria-label="Select all entries of this page" />
      </template>
      <template v-slot:body-selection="props">
        <q-checkbox v-model="props.selected" dense :aria-label="'Select entry ' + props.row.id" />
      </template>
      <template v-for="(cell, slot) in cells" v-slot:[slot]="props">
        <q-td :props="props" :class="cell === 'tone' ? 'tone-' + props.row.tone : ''" :data-row="props.row.id">
          <template v-if="cell === 'actions'">
            <button v-for="(word, at) in props.row.actions" :key="at" type="button" class="cell-button"
              :aria-label="word + ' ' + (props.row.label || props.row.id)"
              @click="$emit('act', props.row.id, word)">{{ word }}</button>
          </template>
          <a v-else-if="cell === 'link' && props.row.links[props.col.name]" :href="props.row.links[props.col.name]">{{
            props.value }}</a>
          <span v-else-if="cell === 'chip'" :class="'chip ' + props.row.tone">{{ props.value }}</span>
          <span v-else-if="cell === 'clip'" class="soft small clip">{{ props.value }}</span>
          <template v-else>{{ props.value }}</template>
        </q-td>
      </template>
    </q-table>
  `,
  props: { columns: Array, rows: Array },
  emits: ["act"],
  computed: {
    cells() {
      const drawn = this.columns.filter((column) => column.cell);
      return Object.fromEntries(drawn.map((column) => ["body-cell-" + column.name, column.cell]));
    },
  },
  watch: {
    // a feed has only the rows in sight: it scrolls with the row of the focus, before new rows push that out
    rows(rows) {
      const focused = window.lastFocus?.();
      if (!("virtual-scroll" in this.$attrs) || !this.$el.contains(focused)) return;
      const id = focused.closest("[data-row]")?.dataset.row;
      const at = rows.findIndex((row) => row.id === id);
      if (at < 0) return;
      this.$refs.qRef.scrollTo(at, "end");
      this.$nextTick(() => this.$refs.qRef?.scrollTo(at, "end")); // a change of the length has reset the first
    },
  },
};
