"""What every page of a run has: its look, and a script that shows the values below the pointer."""

STYLE = """
:root { color-scheme: light dark; --back: #f6f7f9; --card: #fff; --text: #1b1f24; --soft: #667080; --line: #e3e6ea;
  --c0: #0072b2; --c1: #d55e00; --c2: #009e73; --c3: #cc79a7; --c4: #b8860b; --c5: #56b4e9; --bad: #b03030; }
@media (prefers-color-scheme: dark) { :root { --back: #14171b; --card: #1d2126; --text: #e6e9ed; --soft: #98a2b0;
  --line: #30363d; --c0: #56a8dd; --c1: #f08a4b; --c2: #3fc39b; --bad: #f07070; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 1420px; padding: 20px 24px 60px; background: var(--back); color: var(--text);
  font: 15px/1.45 system-ui, "Segoe UI", "Liberation Sans", sans-serif; }
h1 { margin: 0; font-size: 26px; overflow-wrap: anywhere; } h2 { margin: 0 0 12px; font-size: 18px; } h3 { margin:
  18px 0 6px; font-size:
  15px; }
header p { margin: 8px 0 18px; overflow-wrap: anywhere; }
.unit { color: var(--soft); font-weight: normal; font-size: 13px; }
.state { display: inline-block; padding: 2px 12px; border-radius: 12px; background: var(--soft); color: #fff;
  margin-right: 8px; }
.s-finished { background: #1a7f4b; } .s-running { background: #0063a8; } .s-failed, .s-no { background: #b03030; }
.s-stopped { background: #96610a; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(210px, 1fr)); gap: 10px; margin: 0 0 18px; }
.tiles div, section, .chart { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tiles div { padding: 9px 13px; } dt { color: var(--soft); font-size: 13px; } dd { margin: 0; font-size: 16px;
  overflow-wrap: anywhere; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(460px, 100%), 1fr)); gap: 14px; }
.chart { position: relative; margin: 0; padding: 12px 14px 6px; min-width: 0; }
figcaption { font-weight: 600; } .legend { float: right; font-weight: normal; font-size: 13px; }
.key { margin-left: 14px; color: var(--soft); } .key::before { content: ""; display: inline-block; width: 14px;
  height: 3px;
  margin: 0 5px 4px 0; background: currentColor; } .key.c0::before { background: var(--c0); }
.key.c1::before { background: var(--c1); } .key.c2::before { background: var(--c2); } .key.c3::before { background:
  var(--c3); }
.key.c4::before { background: var(--c4); } .key.c5::before { background: var(--c5); }
svg { display: block; width: 100%; height: auto; } svg text { fill: var(--soft); font-size: 12px; }
.left { text-anchor: end; } .below { text-anchor: middle; } .grid { stroke: var(--line); }
.line { fill: none; stroke-width: 1.7; stroke-linejoin: round; } .thin { stroke-width: 0.9; stroke-dasharray: 3 3; }
.band { opacity: 0.2; stroke: none; } .raw { opacity: 0.3; stroke-width: 1; } .mark { stroke: var(--bad);
  stroke-dasharray: 4 3; stroke-width: 1.2; }
.cursor { stroke: var(--soft); visibility: hidden; }
path.line.c0 { stroke: var(--c0); } path.line.c1 { stroke: var(--c1); } path.line.c2 { stroke: var(--c2); }
path.line.c3 { stroke: var(--c3); } path.line.c4 { stroke: var(--c4); } path.line.c5 { stroke: var(--c5); }
.band.c0, circle.c0 { fill: var(--c0); } .band.c1, circle.c1 { fill: var(--c1); } circle.c2 { fill: var(--c2); }
circle.c3 { fill: var(--c3); } circle.c4 { fill: var(--c4); } circle.c5 { fill: var(--c5); }
output { position: absolute; display: none; top: 44px; padding: 4px 9px; background: var(--card); border: 1px solid
  var(--line);
  border-radius: 5px; font-size: 13px; white-space: pre; pointer-events: none; }
section { margin-top: 18px; padding: 16px 18px; } p { margin: 0 0 10px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 14px; margin-top: 8px; }
th, td { text-align: left; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
th { color: var(--soft); font-weight: 600; white-space: nowrap; } td { white-space: nowrap; }
td:last-child { white-space: normal; min-width: 180px; overflow-wrap: anywhere; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.bar { display: flex; height: 16px; min-width: 150px; border-radius: 4px; overflow: hidden; background: var(--line); }
.bar i { flex-basis: 0; min-width: 1px; } .swatch { display: inline-block; width: 13px; height: 13px;
  border-radius: 3px; }
.t-useful { background: #1a9e6c; } .t-lost { background: #c0392b; } .t-checkpoint { background: #2f7fc1; }
.t-restart { background: #e69f00; } .t-queued { background: #9b8ac4; } .t-waiting { background: #9aa3ad; }
pre { margin: 0; padding: 10px 12px; overflow-x: auto; background: var(--back); border-radius: 6px; font-size: 13px; }
pre b { color: var(--c1); } details { margin-top: 10px; } summary { cursor: pointer; color: var(--soft); }
.alarm { color: var(--bad); font-weight: 600; overflow-wrap: anywhere; }
"""

SCRIPT = """
const charts = [...document.querySelectorAll(".chart")].map(figure => ({
  figure, svg: figure.querySelector("svg"), cursor: figure.querySelector(".cursor"), output:
  figure.querySelector("output"),
  data: JSON.parse(figure.querySelector("script").textContent)}));
const left = 58, right = 14, width = 640;
function nearest(steps, step) {
  let low = 0, high = steps.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1; else high = middle;
  }
  return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
}
function show(step) {
  for (const {svg, cursor, output, data} of charts) {
    const inside = step !== null && step >= data.first && step <= data.last;
    cursor.style.visibility = inside ? "visible" : "hidden";
    output.style.display = inside ? "block" : "none";
    if (!inside) continue;
    const at = left + (width - left - right) * (step - data.first) / (data.last - data.first);
    cursor.setAttribute("transform", `translate(${at} 0)`);
    const lines = data.curves.map(([name, steps, values]) => {
      const i = nearest(steps, step);
      return `${name}: ${values[i]} at step ${steps[i].toLocaleString("en")}`;
    });
    output.textContent = lines.join("\\n");
    const pixels = at * svg.clientWidth / width;
    const beside = pixels < svg.clientWidth / 2 ? pixels + 26 : pixels - output.offsetWidth;
    output.style.left = `${Math.max(0, Math.min(beside, svg.clientWidth + 28 - output.offsetWidth))}px`;
  }
}
for (const {svg, data} of charts) {
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) * width / box.width - left) / (width - left - right);
    show(at < 0 || at > 1 ? null : data.first + at * (data.last - data.first));
  });
  svg.addEventListener("pointerleave", () => show(null));
}
"""
