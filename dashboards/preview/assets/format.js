"use strict";
// Values, limits and legends as the boards' field options describe them.

const scaled = (v, names, base = 1000) => {
  let i = 0, x = Math.abs(v);
  while (x >= base && i < names.length - 1) { x /= base; i++; }
  const digits = x >= 100 || x === Math.round(x) ? 0 : x >= 10 ? 1 : 2;
  return (v < 0 ? "-" : "") + x.toFixed(digits) + names[i];
};

const seconds = (v) => {
  const x = Math.abs(v);
  if (x === 0) return "0 s";
  if (x < 0.001) return (v * 1e6).toFixed(0) + " µs";
  if (x < 1) return (v * 1e3).toFixed(0) + " ms";
  if (x < 120) return v.toFixed(x < 10 ? 2 : 0) + " s";
  if (x < 7200) return (v / 60).toFixed(1) + " min";
  if (x < 172800) return (v / 3600).toFixed(1) + " h";
  return (v / 86400).toFixed(1) + " d";
};

const units = {
  percentunit: (v, d) => (v * 100).toFixed(d ?? (Math.abs(v) < 0.1 ? 1 : 0)) + " %",
  percent: (v, d) => v.toFixed(d ?? 0) + " %",
  s: seconds,
  watt: (v) => scaled(v, [" W", " kW", " MW"]),
  celsius: (v) => v.toFixed(0) + " °C",
  bytes: (v) => scaled(v, [" B", " KiB", " MiB", " GiB", " TiB"], 1024),
  Bps: (v) => scaled(v, [" B/s", " kB/s", " MB/s", " GB/s", " TB/s"]),
  MBs: (v) => scaled(v * 1e6, [" B/s", " kB/s", " MB/s", " GB/s", " TB/s"]),
  cps: (v) => scaled(v, [" /s", "k /s", "M /s", "G /s"]),
  rotmhz: (v) => v.toFixed(0) + " MHz",
  locale: (v) => Math.round(v).toLocaleString("en-US"),
  none: (v) => String(Math.round(v * 1000) / 1000),
  short: (v, d) => (d !== undefined && Math.abs(v) < 1000 ? v.toFixed(d) : scaled(v, ["", "k", "M", "G"])),
};

const mapped = (field, v) => {
  for (const m of field.mappings || []) if (m.type === "value" && m.options[String(v)]) return m.options[String(v)];
  return null;
};
const shown = (field, v) => mapped(field, v)?.text ?? (units[field.unit] || units.short)(v, field.decimals);

const paint = (name) => (name === "text" ? "var(--text)" : "var(--" + name + ", " + name + ")");
const colorOf = (field, v) => {
  const m = mapped(field, v);
  if (m?.color) return paint(m.color);
  let color = "text";
  for (const s of field.thresholds?.steps || []) if (s.value === null || s.value === undefined || v >= s.value) color = s.color;
  return paint(color);
};

const named = (legend, labels) => (legend ? legend.replace(/\{\{(\w+)\}\}/g, (_, l) => labels[l] ?? "") : "") ||
  Object.entries(labels).filter(([k]) => k !== "__name__").map(([k, v]) => k + "=" + v).join(", ");

const palettes = {
  light: ["#1f62e0", "#bc4c00", "#1a7f37", "#8250df", "#cf222e", "#0a7b83", "#9a6700", "#bf3989", "#57606a", "#4d5fd3"],
  dark: ["#5794f2", "#ff9830", "#73bf69", "#b877d9", "#f2495c", "#5ec8c8", "#fade2a", "#ff7fb0", "#b0b6be", "#8ab8ff"],
};
const isDark = () => document.documentElement.classList.contains("dark");
const lineColor = (i) => { const p = palettes[isDark() ? "dark" : "light"]; return p[i % p.length]; };
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const resolved = (color) => color.replace(/^var\((--\w+).*$/, (_, n) => css(n) || "gray");

const element = (tag, attrs = {}, ...children) => {
  const e = document.createElement(tag);
  for (const [k, v] of Object.entries(attrs)) if (v !== undefined) e.setAttribute(k, v);
  e.append(...children);
  return e;
};
const drawing = (tag, attrs, ...children) => {
  const e = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [k, v] of Object.entries(attrs)) e.setAttribute(k, v);
  e.append(...children);
  return e;
};
