"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const make = (name, attributes = {}, text) => {
    const one = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    if (text !== undefined) one.textContent = text;
    return one;
  };
  const draw = (name, attributes = {}, text) => {
    const one = document.createElementNS(SVG, name);
    for (const [key, value] of Object.entries(attributes)) one.setAttribute(key, value);
    if (text !== undefined) one.textContent = text;
    return one;
  };
  const whole = (value) => Math.round(value).toLocaleString("en-US");
  const digits = (value) => (value < 9.995 ? value.toFixed(2) : value < 99.95 ? value.toFixed(1) : whole(value));
  const duration = (ns) => {
    if (ns < 999.5) return `${Math.round(ns)} ns`;
    for (const [unit, size] of [["µs", 1e3], ["ms", 1e6]]) if (ns < 999.5 * size) return `${digits(ns / size)} ${unit}`;
    return `${digits(ns / 1e9)} s`;
  };

  // Colours: as the system has them, or as chosen here. A browser that keeps nothing for files forgets the choice.
  const theme = document.querySelector(".theme");
  const choose = (name) => {
    if (name) document.documentElement.dataset.theme = name;
    else delete document.documentElement.dataset.theme;
    for (const button of theme.children) button.setAttribute("aria-pressed", String(button.dataset.theme === name));
  };
  theme.hidden = false;
  theme.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    choose(button.dataset.theme);
    try { localStorage.setItem("worldswitch-theme", button.dataset.theme); } catch { /* nowhere to keep it */ }
  });
  try { choose(localStorage.getItem("worldswitch-theme") || ""); } catch { choose(""); }

  // Copying: by the clipboard where there is one, else by a selection.
  const copy = async (text, button) => {
    const before = button.textContent;
    let done = false;
    try { await navigator.clipboard.writeText(text); done = true; } catch {
      const area = make("textarea", { readonly: "", "aria-hidden": "true" });
      area.value = text;
      document.body.append(area);
      area.select();
      done = document.execCommand("copy");
      area.remove();
      button.focus();
    }
    button.textContent = done ? "Copied" : "Not copied";
    setTimeout(() => { button.textContent = before; }, 1500);
  };
  for (const place of document.querySelectorAll(".copyable")) {
    const button = make("button", { type: "button" }, "Copy");
    button.addEventListener("click", () => copy(place.querySelector("code").textContent, button));
    place.append(button);
  }

  // Tables: sorted by their headings, filtered by a text, copied as tab-separated values.
  const value = (cell) => ("key" in cell.dataset ? (cell.dataset.key === "" ? null : Number(cell.dataset.key)) : cell.textContent);
  const sort = (table, column, heading) => {
    const down = heading.getAttribute("aria-sort") === "descending" || (!heading.hasAttribute("aria-sort") && !heading.classList.contains("n"));
    for (const other of heading.parentElement.children) other.removeAttribute("aria-sort");
    heading.setAttribute("aria-sort", down ? "ascending" : "descending");
    const sign = down ? 1 : -1;
    const keyed = [...table.tBodies[0].rows].map((row) => [value(row.cells[column]), row]);
    keyed.sort(([a], [b]) => {
      if (a === null || b === null) return (a === null) - (b === null);
      return sign * (typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b), "en", { numeric: true }));
    });
    table.tBodies[0].append(...keyed.map(([, row]) => row));
  };
  const equip = (table) => {
    [...table.tHead.rows[0].cells].forEach((heading, column) => {
      const button = make("button", { type: "button" }, heading.textContent);
      heading.replaceChildren(button);
      button.addEventListener("click", () => sort(table, column, heading));
    });
    const tools = make("div", { class: "tools" });
    const label = make("label", {}, "Filter");
    const input = make("input", { type: "search", size: "18" });
    const count = make("span", { role: "status" });
    const button = make("button", { type: "button" }, "Copy table");
    label.append(input);
    tools.append(label, button, count);
    input.addEventListener("input", () => {
      const wanted = input.value.toLowerCase();
      let shown = 0;
      for (const row of table.tBodies[0].rows) {
        row.hidden = !row.textContent.toLowerCase().includes(wanted);
        shown += !row.hidden;
      }
      count.textContent = wanted ? `${whole(shown)} of ${whole(table.tBodies[0].rows.length)} rows` : "";
    });
    button.addEventListener("click", () => {
      const rows = [table.tHead.rows[0], ...[...table.tBodies[0].rows].filter((row) => !row.hidden)];
      copy(rows.map((row) => [...row.cells].map((cell) => cell.textContent).join("\t")).join("\n"), button);
    });
    table.closest(".scroll").before(tools);
  };
  for (const details of document.querySelectorAll("details.data")) {
    const ready = () => { if (details.open && !details.dataset.ready) { details.dataset.ready = "1"; equip(details.querySelector("table")); } };
    details.addEventListener("toggle", ready);
    ready();
  }
  // On paper short tables are shown, and long ones where they are open on the screen.
  const SHORT = 40;
  const short = (one) => { const table = one.querySelector("table"); return !one.closest(".timeline") && (!table || table.tBodies[0].rows.length <= SHORT); };
  addEventListener("beforeprint", () => {
    for (const one of document.querySelectorAll("details")) { one.dataset.was = one.open ? "1" : ""; one.open = one.open || short(one); }
  });
  addEventListener("afterprint", () => { for (const one of document.querySelectorAll("details")) one.open = one.dataset.was === "1"; });

  // The timeline: bins of exits by vCPU and reason, added up to what fits the width.
  const LANE = 64, OVERVIEW = 40, LEAST = 4, APART = 3;
  class Timeline {
    constructor(place) {
      this.place = place;
      this.data = JSON.parse(document.getElementById(place.dataset.timeline).textContent);
      this.lanes = this.data.lanes.map((lane) => ({ name: lane.name, series: lane.series.map((flat) => this.expanded(flat)) }));
      this.from = 0;
      this.to = this.data.bins;
      this.what = "count";
      this.build();
      this.draw();
      new ResizeObserver(() => { if (this.area.clientWidth !== this.width) this.draw(); }).observe(this.area);
    }
    expanded(flat) {
      const found = { count: new Float64Array(this.data.bins), ns: new Float64Array(this.data.bins) };
      for (let i = 0, slot = 0; i < flat.length; i += 3) {
        slot += flat[i];
        found.count[slot] = flat[i + 1];
        found.ns[slot] = flat[i + 2];
      }
      return found;
    }
    build() {
      const tools = make("div", { class: "tools" });
      const buttons = [["+", "Zoom in", () => this.zoom(0.5)], ["−", "Zoom out", () => this.zoom(2)], ["←", "Earlier", () => this.pan(-0.25)],
        ["→", "Later", () => this.pan(0.25)], ["All", "The whole trace", () => this.show(0, this.data.bins)]];
      for (const [text, label, action] of buttons) {
        const button = make("button", { type: "button", "aria-label": label, title: label }, text);
        button.addEventListener("click", action);
        tools.append(button);
      }
      const label = make("label", {}, "Height");
      const select = make("select");
      for (const [key, text] of [["count", "number of exits"], ["ns", "time outside the guest"]]) select.append(make("option", { value: key }, text));
      select.addEventListener("change", () => { this.what = select.value; this.draw(); });
      label.append(select);
      this.status = make("span", { class: "status", role: "status" });
      tools.append(label, this.status);
      this.overview = make("div", { class: "overview" });
      this.area = make("div", { class: "lanes", tabindex: "0", role: "group", "aria-label": "Exits over time. Keys: plus and minus zoom, arrows move, Home shows all." });
      this.tip = make("div", { class: "tip", hidden: "" });
      this.details = make("details", { class: "data" });
      this.details.append(make("summary", {}, "Table behind this: the bins as drawn"));
      this.details.addEventListener("toggle", () => this.tabulate());
      this.details.dataset.ready = "1";
      this.place.replaceChildren(tools, this.overview, this.area, this.tip, this.details);
      this.area.addEventListener("keydown", (event) => this.key(event));
      for (const where of [this.area, this.overview]) this.drag(where);
      this.area.addEventListener("pointermove", (event) => this.point(event));
      this.area.addEventListener("pointerleave", () => { this.tip.hidden = true; });
      this.area.addEventListener("dblclick", () => this.show(0, this.data.bins));
      this.area.addEventListener("wheel", (event) => {
        if (!event.ctrlKey) return;
        event.preventDefault();
        this.zoom(event.deltaY > 0 ? 1.25 : 0.8, this.binAt(event.clientX, this.area));
      }, { passive: false });
    }
    key(event) {
      const actions = { "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2), ArrowLeft: () => this.pan(-0.25),
        ArrowRight: () => this.pan(0.25), Home: () => this.show(0, this.data.bins) };
      if (event.target !== this.area || event.ctrlKey || event.metaKey || event.altKey || !(event.key in actions)) return;
      event.preventDefault();
      actions[event.key]();
    }
    binAt(x, where) {
      const box = where.getBoundingClientRect();
      const share = Math.min(1, Math.max(0, (x - box.left) / box.width));
      return where === this.overview ? share * this.data.bins : this.from + share * (this.to - this.from);
    }
    drag(where) {
      let start = null, shade = null;
      where.addEventListener("pointerdown", (event) => {
        if (event.button !== 0) return;
        start = event.clientX;
        where.setPointerCapture(event.pointerId);
      });
      where.addEventListener("pointermove", (event) => {
        if (start === null) return;
        const box = where.getBoundingClientRect();
        if (!shade) { shade = make("div", { class: "chosen" }); where.append(shade); }
        const [left, right] = [start, event.clientX].sort((a, b) => a - b);
        shade.style.left = `${Math.max(0, left - box.left)}px`;
        shade.style.width = `${Math.min(right, box.right) - Math.max(left, box.left)}px`;
      });
      const end = (event) => {
        if (start === null) return;
        const [a, b] = [this.binAt(start, where), this.binAt(event.clientX, where)].sort((x, y) => x - y);
        const far = Math.abs(event.clientX - start) > 4;
        start = null;
        shade?.remove();
        shade = null;
        if (far && event.type === "pointerup") this.show(Math.floor(a), Math.ceil(b));
      };
      where.addEventListener("pointerup", end);
      where.addEventListener("pointercancel", end);
    }
    show(from, to) {
      const bins = this.data.bins;
      const wide = Math.min(bins, Math.max(LEAST, Math.round(to - from)));
      this.from = Math.min(bins - wide, Math.max(0, Math.round(from)));
      this.to = this.from + wide;
      this.draw();
    }
    zoom(factor, middle = (this.from + this.to) / 2) {
      const wide = Math.max(LEAST, (this.to - this.from) * factor);
      const share = (middle - this.from) / (this.to - this.from);
      this.show(middle - share * wide, middle + (1 - share) * wide);
    }
    pan(share) { const by = share * (this.to - this.from); this.show(this.from + by, this.to + by); }
    columns(from, to, width) {
      const each = Math.max(1, Math.ceil((to - from) / Math.max(1, Math.floor(width / APART))));
      return { each, n: Math.ceil((to - from) / each) };
    }
    sums(series, from, to, each, n, what) {
      const found = new Float64Array(n), values = series[what];
      for (let bin = from; bin < to; bin++) found[Math.floor((bin - from) / each)] += values[bin];
      return found;
    }
    stacked(lanes, from, to, width, what) {
      const { each, n } = this.columns(from, to, width);
      const found = lanes.map((lane) => lane.series.map((one) => this.sums(one, from, to, each, n, what)));
      let most = 0;
      for (const lane of found) for (let i = 0; i < n; i++) most = Math.max(most, lane.reduce((sum, one) => sum + one[i], 0));
      return { each, n, lanes: found, most: most || 1 };
    }
    paths(sums, n, width, height, most) {
      const under = new Float64Array(n), step = width / n, found = [];
      sums.forEach((one, index) => {
        const parts = [];
        for (let i = 0; i < n; i++) {
          if (!one[i]) continue;
          const low = height - (height * under[i]) / most;
          under[i] += one[i];
          const high = height - (height * under[i]) / most;
          const top = Math.min(high, low - 0.7);
          parts.push(`M${(i * step).toFixed(2)} ${low.toFixed(2)}V${top.toFixed(2)}h${step.toFixed(2)}V${low.toFixed(2)}z`);
        }
        if (parts.length) found.push(draw("path", { class: this.data.reasons[index].colour, d: parts.join("") }));
      });
      return found;
    }
    amount(value) { return this.what === "count" ? `${whole(value)} exit${value === 1 ? "" : "s"}` : duration(value); }
    draw() {
      const width = this.width = this.area.clientWidth;
      if (!width) return;
      const view = this.view = this.stacked(this.lanes, this.from, this.to, width, this.what);
      const wide = this.data.width * view.each;
      const nodes = [];
      this.lanes.forEach((lane, index) => {
        const name = make("div", { class: "lane-name" });
        name.append(make("span", {}, lane.name), make("span", {}, `top: ${this.amount(view.most)} in ${duration(wide)}`));
        const svg = draw("svg", { class: "lane", height: LANE, "aria-hidden": "true" });
        svg.append(...this.paths(view.lanes[index], view.n, width * (view.n * view.each) / (this.to - this.from), LANE, view.most));
        nodes.push(name, svg);
      });
      nodes.push(this.axis(width));
      this.area.replaceChildren(...nodes);
      this.drawOverview(this.overview.clientWidth);
      const start = this.from * this.data.width, end = this.to * this.data.width;
      const shown = this.lanes.reduce((sum, lane) => sum + lane.series.reduce((all, one) => {
        for (let bin = this.from; bin < this.to; bin++) all += one.count[bin];
        return all;
      }, 0), 0);
      this.status.textContent = `${duration(end - start)} from +${duration(start)}, ${whole(shown)} exits, drawn in bins of ${duration(wide)}` +
        (view.each > 1 ? ` (${whole(view.each)} added up)` : " (the finest held)");
      this.tabulate();
    }
    axis(width) {
      const svg = draw("svg", { height: 22, "aria-hidden": "true" });
      const span = (this.to - this.from) * this.data.width, start = this.from * this.data.width;
      const rough = span / Math.max(2, Math.floor(width / 110));
      const power = 10 ** Math.floor(Math.log10(rough));
      const step = [1, 2, 5, 10].map((one) => one * power).find((one) => one >= rough);
      const unit = step >= 1e9 ? ["s", 1e9] : step >= 1e6 ? (start + span >= 1e10 ? ["s", 1e9] : ["ms", 1e6]) : start + span >= 1e7 ? ["ms", 1e6] : ["µs", 1e3];
      const places = Math.max(0, Math.ceil(-Math.log10(step / unit[1]) - 1e-9));
      for (let at = Math.ceil(start / step) * step; at <= start + span; at += step) {
        const x = (width * (at - start)) / span;
        const anchor = x < 30 ? "start" : x > width - 30 ? "end" : "middle";
        svg.append(draw("line", { class: "tick", x1: x, x2: x, y1: 0, y2: 5 }), draw("text", { x, y: 17, "text-anchor": anchor }, `+${(at / unit[1]).toFixed(places)} ${unit[0]}`));
      }
      return svg;
    }
    drawOverview(width) {
      const drawn = `${width} ${this.what}`;
      if (this.overviewDrawn !== drawn) this.drawWhole(width);
      this.overviewDrawn = drawn;
      this.overview.querySelector(".window")?.remove();
      if (this.to - this.from < this.data.bins) {
        const scale = width / this.data.bins;
        this.overview.firstChild.append(draw("rect", { class: "window", x: this.from * scale, width: Math.max(2, (this.to - this.from) * scale), y: 0, height: OVERVIEW }));
      }
    }
    drawWhole(width) {
      const svg = draw("svg", { height: OVERVIEW, "aria-hidden": "true" });
      const { each, n } = this.columns(0, this.data.bins, width);
      const sums = this.data.reasons.map((_, index) => {
        const all = new Float64Array(n);
        for (const lane of this.lanes) this.sums(lane.series[index], 0, this.data.bins, each, n, this.what).forEach((one, i) => { all[i] += one; });
        return all;
      });
      let most = 1;
      for (let i = 0; i < n; i++) most = Math.max(most, sums.reduce((sum, one) => sum + one[i], 0));
      svg.append(...this.paths(sums, n, width * (n * each) / this.data.bins, OVERVIEW, most));
      this.overview.replaceChildren(svg);
    }
    point(event) {
      const svgs = [...this.area.querySelectorAll("svg.lane")];
      const lane = svgs.findIndex((svg) => { const box = svg.getBoundingClientRect(); return event.clientY >= box.top && event.clientY <= box.bottom; });
      if (lane < 0 || event.buttons) { this.tip.hidden = true; return; }
      const { each, lanes } = this.view;
      const column = Math.floor((this.binAt(event.clientX, this.area) - this.from) / each);
      const lines = [make("p", {}, `+${duration((this.from + column * each) * this.data.width)}, ${duration(each * this.data.width)} wide`)];
      lanes[lane].forEach((sums, index) => {
        if (!sums[column]) return;
        const line = make("p");
        const swatch = draw("svg", { width: 10, height: 10 });
        swatch.append(draw("rect", { class: this.data.reasons[index].colour, width: 10, height: 10 }));
        line.append(swatch, `${this.data.reasons[index].name}: ${this.amount(sums[column])}`);
        lines.push(line);
      });
      if (lines.length === 1) lines.push(make("p", {}, "no exits"));
      this.tip.replaceChildren(...lines);
      this.tip.hidden = false;
      const box = this.place.getBoundingClientRect();
      this.tip.style.left = `${Math.max(0, Math.min(event.clientX - box.left + 14, box.width - this.tip.offsetWidth - 4))}px`;
      this.tip.style.top = `${event.clientY - box.top + 16}px`;
    }
    tabulate() {
      if (!this.details.open || !this.view) return;
      const { each, n } = this.view;
      const table = make("table"), head = make("tr"), body = make("tbody");
      for (const [name, numeric] of [["vCPU", 0], ["from", 1], ["reason", 0], ["exits", 1], ["time", 1]]) head.append(make("th", numeric ? { scope: "col", class: "n" } : { scope: "col" }, name));
      const cell = (shown, key) => make("td", key === undefined ? { class: "code" } : { class: "n", "data-key": key }, shown);
      this.lanes.forEach((lane) => lane.series.forEach((series, index) => {
        const count = this.sums(series, this.from, this.to, each, n, "count"), ns = this.sums(series, this.from, this.to, each, n, "ns");
        for (let i = 0; i < n; i++) {
          if (!count[i]) continue;
          const row = make("tr"), from = (this.from + i * each) * this.data.width + this.data.first;
          row.append(cell(lane.name), cell(`${(from / 1e9).toFixed(6)} s`, from), cell(this.data.reasons[index].name), cell(whole(count[i]), count[i]), cell(duration(ns[i]), ns[i]));
          body.append(row);
        }
      }));
      const outer = make("thead"), scroll = make("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Table: exits over time" });
      outer.append(head);
      table.append(outer, body);
      scroll.append(table);
      this.details.replaceChildren(this.details.firstChild, scroll);
      equip(table);
    }
  }
  // After the first paint, one after another; the room each will take is kept, so that nothing moves.
  const places = [...document.querySelectorAll("[data-timeline]")];
  for (const place of places) place.style.minHeight = `${(LANE + 26) * Number(place.dataset.lanes) + OVERVIEW + 95}px`;
  const next = () => {
    const place = places.shift();
    if (!place) return;
    new Timeline(place);
    setTimeout(next);
  };
  requestAnimationFrame(() => setTimeout(next));
  addEventListener("beforeprint", () => { for (const place of places.splice(0)) new Timeline(place); });
})();
