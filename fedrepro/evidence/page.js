const all = (selector, where = document) => [...where.querySelectorAll(selector)];
const state = { verdicts: new Set(), scale: "", text: "" };

function filter() {
  const asked = state.verdicts.size || state.text;
  for (const claim of all(".claim")) {
    claim.hidden = (state.verdicts.size && !state.verdicts.has(claim.dataset.verdict))
      || (state.text && !claim.textContent.toLowerCase().includes(state.text));
  }
  for (const block of all(".measured")) {
    block.hidden = (state.scale && block.dataset.scale && block.dataset.scale !== state.scale)
      || (asked && !all(".claim:not([hidden])", block).length);
  }
  for (const table of all(".table")) table.hidden = !all(".measured:not([hidden])", table).length;
  for (const paper of all(".paper")) paper.hidden = (asked || state.scale) && !all(".table:not([hidden])", paper).length;
  const shown = all(".measured:not([hidden]) .claim:not([hidden])").length;
  document.getElementById("shown").textContent = asked || state.scale ? `${shown} claim${shown === 1 ? "" : "s"} shown` : "";
}

for (const part of all(".bar i")) part.style.flex = part.dataset.flex; // the policy forbids style attributes

for (const button of all("nav button")) {
  button.onclick = () => {
    const verdict = button.dataset.verdict;
    state.verdicts.delete(verdict) || state.verdicts.add(verdict);
    button.setAttribute("aria-pressed", state.verdicts.has(verdict));
    filter();
  };
}
document.getElementById("search").oninput = event => { state.text = event.target.value.toLowerCase(); filter(); };
const scales = document.getElementById("scale");
if (scales) scales.onchange = () => { state.scale = scales.value; filter(); };

const RUNS = JSON.parse(document.getElementById("runs").textContent);
const box = document.querySelector("dialog");

function row(name, value) {
  const line = document.createElement("tr");
  for (const text of [name, value]) line.insertCell().textContent = text;
  return line;
}

function curve(values) {
  const top = Math.max(...values), x = i => 6 + 588 * i / Math.max(values.length - 1, 1), y = v => 112 - 100 * v / (top || 1);
  return `<svg viewBox="0 0 600 124" preserveAspectRatio="none" role="img" aria-label="accuracy by round">`
    + `<path d="M${values.map((v, i) => `${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join("L")}" vector-effect="non-scaling-stroke"/></svg>`;
}

function showRun() {
  const id = location.hash.startsWith("#run-") && location.hash.slice(5), run = RUNS[id];
  if (!run) { if (box.open) box.close(); return; }
  box.querySelector("h3").textContent = `Run ${id}`;
  const values = run.curve || [];
  box.querySelector(".curve").innerHTML = values.length > 1 ? curve(values) : "";
  box.querySelector(".caption").textContent = values.length
    ? `Test accuracy over ${run.run.rounds} rounds: from ${values[0]} to ${values.at(-1)}, best ${Math.max(...values)}.` : "";
  const lines = [["digest", run.digest], ["data file", Object.values(run.data).join(" · ")], ["commit", run.commit ?? "unknown"],
    ["versions", Object.entries({ fedrepro: run.fedrepro, ...run.versions }).map(pair => pair.join(" ")).join(" · ")],
    ["machine", Object.values(run.machine).join(" · ").replace(/^(\d+)/, "$1 cores")],
    ["wall time", `${run.wall_time.toFixed(1)} s`],
    ...Object.entries(run.run).map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : value])];
  box.querySelector("tbody").replaceChildren(...lines.map(line => row(...line)));
  const link = box.querySelector("a");
  link.href = link.textContent = run.file;
  if (!box.open) box.showModal();
}

box.onclose = () => { if (location.hash.startsWith("#run-")) history.pushState(null, "", location.pathname + location.search); };
window.onhashchange = showRun;
showRun();
