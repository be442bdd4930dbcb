"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const bar = byId("filters");
  const rows = [...document.querySelectorAll("tbody.check")];
  const heads = [...document.querySelectorAll("tbody.layer")];
  const words = rows.map((row) => row.textContent.toLowerCase());
  const fields = ["layer", "outcome", "text"].map((name) => byId(`by-${name}`));
  const given = new URLSearchParams(location.search);

  function apply() {
    const [layer, outcome, text] = fields.map((f) => f.value.trim());
    const parts = text.toLowerCase().split(/\s+/);
    let shown = 0;
    rows.forEach((row, i) => {
      const state = outcome === "" || [row.dataset.outcome, row.dataset.effect].includes(outcome);
      const seen = (layer === "" || row.dataset.layer === layer) && state && parts.every((p) => words[i].includes(p));
      row.hidden = !seen;
      shown += seen ? 1 : 0;
    });
    for (const head of heads) head.hidden = !rows.some((r) => !r.hidden && r.dataset.layer === head.dataset.layer);
    byId("count").textContent = `${shown} of ${rows.length} checks shown`;
  }

  function reset() {
    for (const field of fields) field.value = "";
    apply();
  }

  // What a link points at is shown: filters that hide it are taken off, folded parts around or in it are opened.
  function reveal() {
    const target = byId(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    if (target.closest("[hidden]")) reset();
    for (let at = target; at; at = at.parentElement) if (at.tagName === "DETAILS") at.open = true;
    const folded = target.classList.contains("check") && target.querySelector("details");
    if (folded) folded.open = true;
    target.scrollIntoView();
  }

  if (bar) {
    bar.hidden = false;
    for (const field of fields) {
      const asked = given.get(field.id.slice(3));
      if (asked !== null) field.value = asked;
      if (field.selectedIndex === -1) field.value = "";
      field.addEventListener("input", apply);
    }
    byId("clear").addEventListener("click", reset);
    apply();
  }
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();
})();
