"use strict";
// One function for each kind of panel. Each gets the panel, its results and where to draw.

const clock = (t, span) => {
  const d = new Date(t * 1000), hm = d.toTimeString().slice(0, 5);
  return span > 172800 ? d.toDateString().slice(4, 10) + " " + hm : hm;
};

const timeAxis = (svg, left, width, y, from, to) => {
  for (let i = 0; i <= 4; i++) {
    const x = left + (width * i) / 4;
    svg.append(drawing("text", { x, y, "text-anchor": i === 0 ? "start" : i === 4 ? "end" : "middle" }, clock(from + ((to - from) * i) / 4, to - from)));
  }
};

const keys = (body, field) => {
  const list = element("div", { class: "keys" });
  const add = (color, text) => list.append(element("span", {}, element("i", { style: "background:" + color }), text));
  const names = (field.mappings || []).flatMap((m) => Object.values(m.options)).sort((a, b) => (a.index ?? 0) - (b.index ?? 0));
  if (names.length) for (const n of names) add(paint(n.color), n.text);
  else for (const s of field.thresholds?.steps || []) add(paint(s.color === "text" ? "line" : s.color), s.value === null || s.value === undefined ? "below" : "from " + shown(field, s.value));
  body.append(list);
};

// rows draws what each series was over time, for state-timeline and status-history.
const rows = (panel, results, body, at) => {
  const field = panel.fieldConfig.defaults, width = body.clientWidth - 18;
  const series = results.flatMap((r) => r.series.map((s) => ({ name: named(r.legend, s.metric), metric: s.metric, points: s.values })));
  series.sort((a, b) => a.name.localeCompare(b.name, "en", { numeric: true }));
  const left = Math.min(230, 14 + 6.4 * Math.max(...series.map((s) => s.name.length))), high = Math.max(12, Math.min(26, (body.clientHeight - 46) / series.length));
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${series.length * high + 18}`, role: "img", "aria-label": panel.title });
  svg.style.width = width + "px";
  const x = (t) => left + ((t - at.from) / (at.to - at.from)) * (width - left);
  series.forEach((s, i) => {
    const label = drawing("text", { x: 0, y: i * high + high / 2 + 4 }, s.name.length > 34 ? s.name.slice(0, 33) + "…" : s.name);
    const href = at.link(panel, s.metric);
    svg.append(href ? drawing("a", { href }, label) : label);
    for (let k = 0; k < s.points.length;) {
      const [t, v] = [s.points[k][0], Number(s.points[k][1])], color = colorOf(field, v);
      let n = k + 1;
      while (n < s.points.length && s.points[n][0] - s.points[n - 1][0] <= at.step * 1.5 && colorOf(field, Number(s.points[n][1])) === color) n++;
      const until = Math.min(at.to, s.points[n - 1][0] + at.step);
      svg.append(drawing("rect", { x: x(t), y: i * high + 1, width: Math.max(1, x(until) - x(t)), height: high - 2, style: "fill:" + (color === "var(--text)" ? "var(--line)" : color) },
        drawing("title", {}, `${s.name}: ${shown(field, v)}, ${clock(t, 1e9)} to ${clock(until, 1e9)}`)));
      k = n;
    }
  });
  timeAxis(svg, left, width - left, series.length * high + 14, at.from, at.to);
  body.append(svg);
  keys(body, field);
};

// charts keeps what must be destroyed when the board changes.
const charts = [];

const lines = (panel, results, body, at) => {
  const field = panel.fieldConfig.defaults, stacked = field.custom?.stacking?.mode === "normal";
  const times = [];
  for (let t = at.from; t <= at.to; t += at.step) times.push(t);
  const series = results.flatMap((r) => r.series.map((s) => ({ name: named(r.legend, s.metric) || panel.title, metric: s.metric, values: s.values })));
  const data = series.map((s) => {
    const by = new Map(s.values.map(([t, v]) => [Math.round((t - at.from) / at.step), Number(v)]));
    return times.map((_, i) => { const v = by.get(i); return v === undefined || Number.isNaN(v) ? null : v; });
  });
  const drawn = stacked ? data.map((_, i) => times.map((__, k) => data.slice(0, i + 1).reduce((sum, d) => sum + (d[k] ?? 0), 0))) : data;
  const box = element("div", { class: "chart" }), plot = element("div", { class: "plot" }), legend = element("table", { class: "legend" });
  const tall = element("div", { class: "legend" }, legend);
  box.append(plot, tall);
  body.append(box);
  legend.append(element("tr", {}, element("td"), element("td", { class: "number" }, "last"), element("td", { class: "number" }, "max")));
  series.forEach((s, i) => {
    const known = data[i].filter((v) => v !== null), href = at.link(panel, s.metric), text = element("td", {}, element("i", { style: "background:" + lineColor(i) }));
    text.append(href ? element("a", { href }, s.name) : s.name);
    legend.append(element("tr", {}, text, element("td", { class: "number" }, known.length ? shown(field, known[known.length - 1]) : ""), element("td", { class: "number" }, known.length ? shown(field, Math.max(...known)) : "")));
  });
  const limits = (field.thresholds?.steps || []).filter((s) => s.value !== null && s.value !== undefined);
  const top = Math.max(0, ...drawn.flat().filter((v) => v !== null));
  const draw = (u) => {
    const c = u.ctx;
    c.save();
    for (const s of limits) {
      if (s.value > u.scales.y.max) continue;
      const y = u.valToPos(s.value, "y", true);
      c.strokeStyle = resolved(paint(s.color)); c.setLineDash([6, 4]); c.lineWidth = 1.5;
      c.beginPath(); c.moveTo(u.bbox.left, y); c.lineTo(u.bbox.left + u.bbox.width, y); c.stroke();
    }
    c.setLineDash([2, 3]);
    for (const a of at.annotations) {
      const px = u.valToPos(a.t, "x", true);
      c.strokeStyle = resolved(paint(a.color)); c.beginPath(); c.moveTo(px, u.bbox.top); c.lineTo(px, u.bbox.top + u.bbox.height); c.stroke();
    }
    c.restore();
  };
  const axis = { stroke: css("--soft"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line") }, font: "11px system-ui" };
  const order = drawn.map((_, i) => (stacked ? drawn.length - 1 - i : i)); // of a stack, the highest is drawn first
  charts.push(new uPlot({
    width: plot.clientWidth, height: Math.max(90, plot.clientHeight), legend: { show: false }, cursor: { y: false },
    scales: { x: { time: true }, y: { range: (_, lo, hi) => [Math.min(0, lo ?? 0), field.max ?? ((hi ?? 1) * 1.08 || 1)] } },
    axes: [{ ...axis, values: (_, ticks) => ticks.map((t) => clock(t, at.to - at.from)), space: 70 }, { ...axis, size: 74, values: (_, ticks) => ticks.map((v) => shown({ ...field, mappings: [], decimals: undefined }, v)) }],
    series: [{}, ...order.map((i) => ({ label: series[i].name, stroke: lineColor(i), width: 1.5, points: { show: false }, fill: stacked ? lineColor(i) + "b0" : drawn.length === 1 ? lineColor(i) + "18" : undefined }))],
    hooks: { draw: [draw] },
  }, [times, ...order.map((i) => drawn[i])], plot));
  if (top === 0 && limits.length === 0) plot.title = "all values are 0";
};

const heat = (panel, results, body, at) => {
  const field = panel.fieldConfig.defaults, width = body.clientWidth - 18, height = body.clientHeight - 26, left = 66, columns = 60, bins = 16;
  const points = results.flatMap((r) => r.series.flatMap((s) => s.values.map(([t, v]) => [t, Number(v)])));
  const lo = field.max ? 0 : Math.min(...points.map((p) => p[1])), top = field.max ?? Math.max(...points.map((p) => p[1])), span = top - lo || 1;
  const cells = new Map();
  for (const [t, v] of points) {
    const key = Math.min(columns - 1, Math.floor(((t - at.from) / (at.to - at.from)) * columns)) + "/" + Math.min(bins - 1, Math.max(0, Math.floor(((v - lo) / span) * bins)));
    cells.set(key, (cells.get(key) || 0) + 1);
  }
  const most = Math.max(...cells.values());
  const svg = drawing("svg", { viewBox: `0 0 ${width} ${height + 18}`, role: "img", "aria-label": panel.title }), w = (width - left) / columns, h = height / bins;
  for (const [key, n] of cells) {
    const [c, b] = key.split("/").map(Number);
    svg.append(drawing("rect", { x: left + c * w, y: height - (b + 1) * h, width: w - 0.5, height: h - 0.5, style: `fill:var(--orange);opacity:${0.2 + (0.8 * n) / most}` },
      drawing("title", {}, `${shown(field, lo + (span * b) / bins)} to ${shown(field, lo + (span * (b + 1)) / bins)}: ${n} values`)));
  }
  for (let i = 0; i <= 4; i++) svg.append(drawing("text", { x: 0, y: height - (height * i) / 4 + (i === 4 ? 10 : 0) }, shown(field, lo + (span * i) / 4)));
  timeAxis(svg, left, width - left, height + 14, at.from, at.to);
  body.append(svg);
};

const big = (panel, results, body) => {
  const field = panel.fieldConfig.defaults, box = element("div", { class: "stat" });
  for (const r of results) for (const s of r.series) box.append(element("b", { style: "color:" + colorOf(field, Number(s.value[1])) }, shown(field, Number(s.value[1]))));
  body.append(box);
};

const listing = (panel, results, body, at) => {
  const field = panel.fieldConfig.defaults, organize = (panel.transformations || []).find((t) => t.id === "organize")?.options || {};
  const columns = Object.entries(organize.indexByName || {}).sort((a, b) => a[1] - b[1]).map(([name]) => name).filter((n) => !organize.excludeByName?.[n]);
  const list = element("table");
  list.append(element("tr", {}, ...columns.map((c) => element("th", { class: c === "Value" ? "number" : undefined }, organize.renameByName?.[c] || c))));
  const all = results.flatMap((r) => r.series).sort((a, b) => Number(b.value[1]) - Number(a.value[1]));
  for (const s of all) {
    const href = at.link(panel, s.metric);
    list.append(element("tr", {}, ...columns.map((c, i) => {
      if (c === "Value") return element("td", { class: "number", style: "color:" + colorOf(field, Number(s.value[1])) }, shown(field, Number(s.value[1])));
      const text = s.metric[c] ?? "";
      return element("td", {}, href && (c === "alertname" || i === 0) ? element("a", { href }, text) : text);
    })));
  }
  body.append(list);
};

const bars = (panel, results, body, at) => {
  const field = panel.fieldConfig.defaults, box = element("div", { class: "bars" });
  const all = results.flatMap((r) => r.series.map((s) => ({ name: named(r.legend, s.metric) || panel.title, metric: s.metric, v: Number(s.value[1]) })));
  const top = field.max ?? Math.max(...all.map((x) => x.v), 1e-12);
  for (const x of all) {
    const color = colorOf(field, x.v), href = at.link(panel, x.metric);
    box.append(element("span", {}, href ? element("a", { href }, x.name) : x.name),
      element("div", { class: "track" }, element("div", { class: "fill", style: `width:${Math.min(100, (100 * x.v) / top)}%;background:${color === "var(--text)" ? "var(--blue)" : color}` })),
      element("span", {}, shown(field, x.v)));
  }
  body.append(box);
};

const kinds = { stat: big, timeseries: lines, "state-timeline": rows, "status-history": rows, heatmap: heat, table: listing, bargauge: bars };
