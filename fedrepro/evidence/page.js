const all = (selector, where = document) => [...where.querySelectorAll(selector)];
const state = { verdicts: new Set(), scale: "", words: [] };
const search = document.getElementById("search");
const FRONT = ".card, #totals, #totals + .totals, #note, #comparisons, #methods, #verdicts";

// every hyphen and minus sign is one; "noniid", "non-iid" and "non iid" find non-IID
const plain = text => text.normalize("NFKC").toLowerCase().replace(/[\u2010-\u2015\u2212\uFE63\uFF0D]/g, "-").replace(/\s+/g, " ");
const texts = new Map(all(".claim").map(claim => {
  const text = plain(claim.textContent);
  return [claim, `${text} ${text.replace(/(\w)-(?=\w)/g, "$1")}`];
}));

function filter() {
  const asked = state.verdicts.size || state.words.length;
  for (const [claim, text] of texts) {
    const verdicts = claim.dataset.verdict.split(" ");
    claim.hidden = (state.verdicts.size && !verdicts.some(one => state.verdicts.has(one)))
      || !state.words.every(word => text.includes(word));
  }
  for (const block of all(".measured")) {
    block.hidden = (state.scale && block.dataset.scale && block.dataset.scale !== state.scale)
      || (asked && !all(".claim:not([hidden])", block).length);
  }
  for (const badge of all(".list .badge")) badge.hidden = state.scale && badge.querySelector("small").textContent !== state.scale;
  for (const table of all(".table")) table.hidden = !all(".measured:not([hidden])", table).length;
  for (const paper of all(".paper")) paper.hidden = asked && !all(".claim:not([hidden])", paper).length;
  for (const front of all(FRONT)) front.hidden = asked; // so that what was found comes first
  const shown = all(".claim:not([hidden])").filter(claim => !claim.closest("[hidden]")).length;
  document.getElementById("shown").textContent = asked || state.scale ? `${shown} claim${shown === 1 ? "" : "s"} shown` : "";
}

for (const part of all(".bar i")) part.style.flex = part.dataset.flex; // the policy forbids style attributes

for (const button of all(".filter button")) {
  button.onclick = () => {
    const verdict = button.dataset.verdict;
    state.verdicts.delete(verdict) || state.verdicts.add(verdict);
    button.setAttribute("aria-pressed", state.verdicts.has(verdict));
    filter();
  };
}
search.oninput = () => { state.words = plain(search.value).split(" ").filter(Boolean); filter(); };
const scales = document.getElementById("scale");
if (scales) scales.onchange = () => { state.scale = scales.value; filter(); };
document.onkeydown = event => {
  if (event.key === "/" && !/INPUT|SELECT/.test(document.activeElement.tagName) && !box.open) { search.focus(); event.preventDefault(); }
  if (event.key === "Escape" && document.activeElement === search) { search.value = ""; search.oninput(); search.blur(); }
};

const contents = document.querySelector("aside details");
const narrow = matchMedia("(max-width: 1150px)");
narrow.onchange = () => { contents.open = !narrow.matches; };
narrow.onchange();
const entries = new Map(all("aside a[href^='#']").map(link => [document.getElementById(link.hash.slice(1)), link]));
const seen = new IntersectionObserver(changes => {
  for (const { target, isIntersecting } of changes) {
    if (isIntersecting) entries.get(target).setAttribute("aria-current", "true");
    else entries.get(target).removeAttribute("aria-current");
  }
}, { rootMargin: "-10% 0px -75% 0px" });
for (const target of entries.keys()) if (target) seen.observe(target);

let opened = [];
window.onbeforeprint = () => { opened = all("main details:not([open])"); for (const fold of opened) fold.open = true; };
window.onafterprint = () => { for (const fold of opened) fold.open = false; };

const RUNS = JSON.parse(document.getElementById("runs").textContent);
const box = document.querySelector("dialog");

function row(name, value) {
  const line = document.createElement("tr");
  for (const text of [name, value]) {
    if (text instanceof Node) line.insertCell().append(text);
    else line.insertCell().textContent = text;
  }
  return line;
}

const percent = share => `${(100 * share).toFixed(2)}%`;

function curve(values) {
  const top = Math.max(...values), x = i => 6 + 588 * i / Math.max(values.length - 1, 1), y = v => 112 - 100 * v / (top || 1);
  return `<svg viewBox="0 0 600 124" preserveAspectRatio="none" role="img" aria-label="accuracy by round">`
    + `<path d="M${values.map((v, i) => `${x(i).toFixed(1)} ${y(v).toFixed(1)}`).join("L")}" vector-effect="non-scaling-stroke"/></svg>`;
}

function fill(title, drawing, caption, lines, file) {
  box.querySelector("h3").textContent = title;
  box.querySelector(".curve").innerHTML = drawing;
  box.querySelector(".caption").textContent = caption;
  box.querySelector("tbody").replaceChildren(...lines.map(line => row(...line)));
  const link = box.querySelector(".from a");
  link.href = link.textContent = file;
  if (!box.open) box.showModal();
}

function showRun(id) {
  const run = RUNS[id], values = run.curve || [];
  const caption = values.length
    ? `Test accuracy over ${run.run.rounds} rounds: from ${percent(values[0])} to ${percent(values.at(-1))}, best ${percent(Math.max(...values))}.` : "";
  const lines = [["digest", run.digest], ["data file", Object.values(run.data).join(" · ")], ["commit", run.commit ?? "unknown"],
    ["versions", Object.entries({ fedrepro: run.fedrepro, ...run.versions }).map(pair => pair.join(" ")).join(" · ")],
    ["machine", Object.values(run.machine).join(" · ").replace(/^(\d+)/, "$1 cores")],
    ["wall time", `${run.wall_time.toFixed(1)} s`],
    ...Object.entries(run.run).map(([name, value]) => [name, typeof value === "object" ? JSON.stringify(value) : value])];
  fill(`Run ${id}: ${run.run.method}, seed ${run.run.seed}`, values.length > 1 ? curve(values) : "", caption, lines, run.file);
}

function showRuns(ids) {
  const lines = ids.map(id => {
    const { run, curve } = RUNS[id], link = document.createElement("a");
    link.href = `#run-${id}`;
    link.textContent = id;
    return [link, `${run.method}, seed ${run.seed}: accuracy ${percent(curve.at(-1))} after ${run.rounds} rounds`];
  });
  fill("The runs behind this comparison", "", "", lines, RUNS[ids[0]].file);
}

function show() {
  const [, kind, list] = location.hash.match(/^#(runs?)-(.+)/) ?? [];
  const ids = (list ?? "").split(".").filter(id => RUNS[id]);
  if (!ids.length) { if (box.open) box.close(); return; }
  kind === "run" ? showRun(ids[0]) : showRuns(ids);
}

box.onclose = () => { if (/^#runs?-/.test(location.hash)) history.pushState(null, "", location.pathname + location.search); };
window.onhashchange = show;
show();
