// Sliders over a grid that was simulated beforehand: they move the answer, the front, the crossings and the table. Nothing is computed
// here but which of the figures are shown.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const by = (id) => document.getElementById(id);
  const AXES = Object.keys(data.axes), GAP = "\u00a0";
  const MOVING = AXES.filter((name) => data.axes[name].length > 1); // a single worker has no axis of workers
  const LEADS = [["dollars", "cheaper", "cheapest"], ["time", "sooner", "soonest"]];
  const at = { ...data.begin, deadline: data.deadlines.length }; // the last one: none

  // --- positions in the address: #epochs=50&parameters=10000000&workers=16&deadline=3600&over=epochs -----------------------

  const valuesOf = (name) => (name === "deadline" ? data.deadlines : data.axes[name]);
  const fromAddress = () => {
    const given = new URLSearchParams(location.hash.slice(1));
    for (const name of [...AXES, "deadline"]) {
      const index = valuesOf(name).indexOf(Number(given.get(name)));
      if (given.has(name) && index >= 0) at[name] = index;
    }
    if (MOVING.includes(given.get("over"))) by("over").value = given.get("over");
  };
  const toAddress = () => {
    const told = new URLSearchParams(AXES.map((name) => [name, data.axes[name][at[name]]]));
    if (at.deadline < data.deadlines.length) told.set("deadline", data.deadlines[at.deadline]);
    told.set("over", by("over").value);
    history.replaceState(null, "", `#${told}`);
  };

  // --- figures as people read them -----------------------------------------------------------------------------------

  const usd = (value) => {
    if (value >= 1) return `$${value.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
    return `$${value.toFixed(Math.min(12, Math.max(3, 2 - Math.floor(Math.log10(value)))))}`;
  };
  const seconds = (value) => {
    if (value < 0.0995) return `${Number((1000 * value).toPrecision(3))}${GAP}ms`;
    if (value < 120) return `${value < 10 ? Number(value.toPrecision(3)) : value.toFixed(1)}${GAP}s`;
    const whole = Math.round(value), hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    const two = (n) => String(n).padStart(2, "0");
    return hours ? `${hours}${GAP}h ${two(minutes)}${GAP}min` : `${minutes}${GAP}min ${two(whole % 60)}${GAP}s`;
  };
  const count = (value) => {
    for (const [size, letter] of [[1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
      if (value >= size) return `${Number((value / size).toPrecision(3))}${GAP}${letter}`;
    }
    return String(value);
  };

  // --- what holds where the sliders stand ------------------------------------------------------------------------------

  const place = (where) => AXES.reduce((sum, axis) => sum * data.axes[axis].length + where[axis], 0);
  const cell = (where) => data.cells[place(where)].map(([n, ...figures]) => ({
    ...entrant(n, where), n, time: figures.slice(0, 3), dollars: figures.slice(3, 6), cheaper: figures[6], sooner: figures[7],
  }));
  const entrant = (n, where) => ({ ...data.entrants[n], words: data.entrants[n].words[where.workers] });
  const refused = () => data.refused[place(at)].map(([n, why]) => ({ ...entrant(n, at), why: data.reasons[why] }));
  const limit = () => data.deadlines[at.deadline] ?? Infinity;
  const holding = (runs) => runs.filter((run) => run.time[2] <= limit());
  const first = (runs, figure) => [...runs].sort((a, b) => a[figure][1] - b[figure][1])[0];
  const tied = (runs, leader, surely) => runs.filter((run) => run !== leader && !leader[surely].includes(run.n));
  const isBeaten = (run, runs) => runs.some((other) => other !== run && other.time[1] <= run.time[1] && other.dollars[1] <= run.dollars[1]
    && (other.time[1] < run.time[1] || other.dollars[1] < run.dollars[1]));
  const full = (run) => `${run.name} (${run.words})`;
  const named = (runs) => runs.map(full).join(" and ");

  const led = (runs, figure, surely, what) => {
    const leader = first(runs, figure), others = tied(runs, leader, surely), value = (figure === "time" ? seconds : usd)(leader[figure][1]);
    return others.length ? `${full(leader)} and ${named(others)} are too close to call as ${what}, about ${value}` : `${full(leader)} is ${what}, ${value}`;
  };

  const answer = () => {
    const runs = cell(at), kept = holding(runs), within = limit() < Infinity ? ` within ${seconds(limit())}` : "";
    const asked = `${words("epochs")}, ${words("parameters")}, ${words("workers")}${within}`;
    if (!runs.length) return `${asked}: AWS would run none of these.`;
    if (!kept.length) return `${asked}: nothing holds that at p95; ${led(runs, "time", "sooner", "soonest")}.`;
    const [cheap, soon] = LEADS.map(([figure, surely]) => [first(kept, figure), surely]);
    const both = cheap[0] === soon[0] && [cheap, soon].every(([leader, surely]) => !tied(kept, leader, surely).length);
    if (both) return `${asked}: ${full(cheap[0])} is cheapest and soonest, ${usd(cheap[0].dollars[1])} and ${seconds(cheap[0].time[1])}.`;
    return `${asked}: ${led(kept, "dollars", "cheaper", "cheapest")}; ${led(kept, "time", "sooner", "soonest")}.`;
  };

  // Who is best in a figure, or all that may be.
  const best = (runs, figure, surely) => {
    if (!runs.length) return "none";
    const leader = first(runs, figure), close = [leader, ...tied(runs, leader, surely)];
    const names = close.map((run) => run.name).join(" or ");
    return close.length > 1 ? `${names} (too close to call)` : names;
  };

  // Along an axis, who is best from which value to which, the other sliders as they stand.
  const along = (axis, [figure, surely, what]) => {
    const parts = [], begins = `Over ${axis}, ${what}: `;
    data.axes[axis].forEach((value, index) => {
      const name = best(holding(cell({ ...at, [axis]: index })), figure, surely);
      if (parts.at(-1)?.name !== name) parts.push({ name, from: value });
      parts.at(-1).to = value;
    });
    if (parts.length === 1) return `${begins}${parts[0].name} throughout.`;
    const told = parts.map(({ name, from, to }, n) => {
      if (n === 0) return `${name} up to ${count(to)}`;
      if (n === parts.length - 1) return `${name} from ${count(from)} on`;
      return `${name} ${from === to ? `at ${count(from)}` : `from ${count(from)} to ${count(to)}`}`;
    });
    return `${begins}${told.join("; ")}.`;
  };

  const words = (name) => {
    if (name === "deadline") return limit() < Infinity ? seconds(limit()) : "none";
    const value = data.axes[name][at[name]];
    return `${count(value)} ${value === 1 ? name.slice(0, -1) : name}`;
  };

  // --- the table -------------------------------------------------------------------------------------------------------

  const table = () => {
    const runs = cell(at), kept = holding(runs);
    const spread = (shown, [low, , high]) => `${shown(low)} to ${shown(high)}`;
    const figures = (run) => {
      const here = [isBeaten(run, runs) ? "" : "on the front", kept.includes(run) ? "" : "too late"].filter(Boolean).join(", ");
      return [seconds(run.time[1]), spread(seconds, run.time), usd(run.dollars[1]), spread(usd, run.dollars), here];
    };
    const sorted = [...runs].sort((a, b) => a.dollars[1] - b.dollars[1]);
    by("rows").replaceChildren(...[...sorted, ...refused()].map((run) => {
      const row = document.createElement("tr"), rest = run.why ? ["", "", "", "", `would not run: ${run.why}`] : figures(run);
      [run.name, run.words, ...rest].forEach((text, n) => {
        const each = document.createElement(n ? "td" : "th");
        if (n > 1 && n < 6) each.className = "figure";
        if (!n) {
          const sign = document.createElement("span");
          sign.textContent = `${run.sign} `;
          sign.setAttribute("aria-hidden", "true");
          sign.style.color = `var(--series-${run.colour})`;
          each.scope = "row";
          each.append(sign);
        }
        each.append(text);
        row.append(each);
      });
      return row;
    }));
    const cells = [...document.querySelectorAll("#rows tr")].map((row) => [...row.children].map((each) => each.textContent));
    const quoted = (text) => `"${(/^[=+@-]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;
    const head = ["option", "consists of", "ready in", "p5 to p95", "dollars", "p5 to p95", "here"];
    by("csv").href = `data:text/csv;charset=utf-8,${encodeURIComponent([head, ...cells].map((row) => row.map(quoted).join(",")).join("\n"))}`;
  };

  // --- the drawings ------------------------------------------------------------------------------------------------------

  const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  // Three ticks at least, as round as they can be.
  const ticks = (low, high) => {
    for (const digits of [[1], [1, 3], [1, 2, 5], [1, 1.5, 2, 3, 5, 7], [1, 2, 3, 4, 5, 6, 7, 8, 9]]) {
      const found = [];
      for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
        for (const digit of digits) found.push(Number((digit * 10 ** power).toPrecision(3)));
      }
      const inside = found.filter((value) => value >= low && value <= high);
      if (inside.length >= 3) return inside.filter((_, n) => n % Math.ceil(inside.length / 6) === 0);
    }
    return [low, Math.sqrt(low * high), high].map((value) => Number(value.toPrecision(3)));
  };
  const ROUND = [0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600, 10800, 36000, 86400, 259200, 864000]; // seconds
  const moments = (low, high) => {
    const inside = ROUND.filter((value) => value >= low && value <= high);
    return inside.length >= 3 ? inside : ticks(low, high);
  };
  const axis = ({ label, shown, splits = ticks }, scale) => ({
    scale, label, stroke: css("--ink"), grid: { stroke: css("--faint"), width: 1 }, ticks: { stroke: css("--faint"), width: 1 },
    size: scale === "y" ? 86 : 40, labelSize: 22, font: "12px system-ui, sans-serif", labelFont: "12px system-ui, sans-serif",
    splits: (_, __, low, high) => splits(low, high), filter: (_, splits) => splits, values: (_, splits) => splits.map(shown),
  });
  const wider = (_, low, high) => (low > 0 && high > 0 ? [low / 1.6, high * 1.6] : [0.1, 10]);
  const drawings = {};

  // Curves, or points alone, on two logarithmic axes: each with its sign at every value and its name at the last.
  const draw = (id, xs, series, { x, y, marked, yours, late }) => {
    const place = by(id);
    drawings[id]?.destroy();
    place.replaceChildren(globalThis.uPlot ? "" : data.without);
    if (!globalThis.uPlot || !xs.length) return;
    const labelled = (u) => {
      const { ctx } = u, scale = devicePixelRatio, taken = [];
      ctx.save();
      ctx.font = `${13 * scale}px system-ui, sans-serif`;
      ctx.textBaseline = "middle";
      ctx.textAlign = "center";
      const line = (value, of) => {
        const [from, to] = of === "x" ? [[value, u.bbox.top], [value, u.bbox.top + u.bbox.height]]
          : [[u.bbox.left, value], [u.bbox.left + u.bbox.width, value]];
        ctx.strokeStyle = css("--ink");
        ctx.setLineDash([4 * scale, 4 * scale]);
        ctx.beginPath();
        ctx.moveTo(...from);
        ctx.lineTo(...to);
        ctx.stroke();
      };
      if (marked) line(u.valToPos(marked, "x", true), "x");
      ctx.fillStyle = css("--ink");
      if (yours) ctx.fillText("yours", u.valToPos(yours, "x", true), u.bbox.top + 8 * scale);
      const low = u.scales.y.min, high = u.scales.y.max;
      if (late && late > low && late < high) line(u.valToPos(late, "y", true), "y");
      series.forEach(({ run, values }) => {
        if (!run) return;
        const seen = values.map((value, n) => [n, value]).filter(([, value]) => value != null);
        ctx.fillStyle = css(`--series-${run.colour}`);
        ctx.globalAlpha = run.late ? 0.35 : 1;
        for (const [n, value] of seen) ctx.fillText(run.sign, u.valToPos(xs[n], "x", true), u.valToPos(value, "y", true));
        ctx.globalAlpha = 1;
        if (!seen.length) return;
        const [n, value] = seen.at(-1), left = u.valToPos(xs[n], "x", true);
        const mark = u.valToPos(value, "y", true);
        const wide = ctx.measureText(run.name).width, flip = left + wide + 14 * scale > u.bbox.left + u.bbox.width;
        const from = flip ? left - wide - 10 * scale : left + 10 * scale;
        const free = (step) => {  // the next place for the name, from the mark on, where no other is
          let top = mark;
          const hits = (other) => Math.abs(other.top - top) < 14 * scale && from < other.to && from + wide > other.from;
          for (let turn = 0; turn < 12 && taken.some(hits); turn++) top += step * scale;
          return top;
        };
        const above = free(-7), top = above > 16 * scale ? above : free(7);  // above the drawing it would be cut
        taken.push({ top, from, to: from + wide });
        ctx.textAlign = "left";
        ctx.fillStyle = css("--ink");
        ctx.fillText(run.name, from, top - 8 * scale);
        ctx.textAlign = "center";
      });
      ctx.restore();
    };
    drawings[id] = new uPlot({
      width: place.clientWidth, height: 300, legend: { show: false }, cursor: { show: false },
      scales: { x: { time: false, distr: 3, range: wider }, y: { distr: 3, range: wider } },
      axes: [axis(x, "x"), axis(y, "y")],
      series: [{}, ...series.map(({ run, line }) => ({
        stroke: run ? css(`--series-${run.colour}`) : css("--ink"), width: line ? 1.5 : 0, points: { show: false }, spanGaps: !run,
      }))],
      hooks: { draw: [labelled] },
    }, [xs, ...series.map(({ values }) => values)], place);
    place.setAttribute("role", "img");
    place.setAttribute("aria-label", `${y.label} against ${x.label}: ${series.filter((each) => each.run).map((each) => each.run.name).join(", ")}`);
  };

  const front = () => {
    const kept = holding(cell(at)).map((run) => run.n);
    const runs = cell(at).map((run) => ({ ...run, late: !kept.includes(run.n) })).sort((a, b) => a.dollars[1] - b.dollars[1]);
    const own = (run, other) => (run === other ? run.time[1] : null);
    const series = runs.map((run) => ({ run, values: runs.map((other) => own(run, other)) }));
    series.push({ line: true, values: runs.map((run) => (isBeaten(run, runs) ? null : run.time[1])) });
    draw("front", runs.map((run) => run.dollars[1]), series, {
      x: { label: "dollars", shown: tickUsd }, y: { label: "ready in", shown: seconds, splits: moments }, late: limit() < Infinity ? limit() : 0,
    });
  };
  const tickUsd = (value) => `$${Number(value.toPrecision(3))}`;

  const curves = () => {
    const over = by("over").value, xs = data.axes[over];
    const cells = xs.map((_, index) => cell({ ...at, [over]: index }));
    const series = data.entrants.map((entrant, n) => ({
      run: { ...entrant, n }, line: true, values: cells.map((runs) => runs.find((run) => run.n === n)?.dollars[1] ?? null),
    }));
    draw("curves", xs, series, { x: { label: over, shown: count }, y: { label: "dollars", shown: tickUsd }, marked: xs[at[over]], yours: xs[data.begin[over]] });
  };

  const show = () => {
    for (const name of [...AXES, "deadline"]) {
      by(name).setAttribute("aria-valuetext", words(name));
      const yours = at[name] === data.begin[name] ? " (yours)" : "";
      by(`${name}-is`).textContent = name === "deadline" ? words(name) : count(data.axes[name][at[name]]) + yours;
    }
    by("says").textContent = answer();
    const told = MOVING.flatMap((name) => LEADS.map((lead) => along(name, lead)));
    by("crossings").replaceChildren(...told.map((textContent) => Object.assign(document.createElement("li"), { textContent })));
    table();
    front();
    curves();
  };

  for (const name of AXES.filter((each) => !MOVING.includes(each))) {
    by(name).parentElement.style.display = "none";
    [...by("over").options].find((option) => option.value === name).remove();
  }
  fromAddress();
  for (const name of [...AXES, "deadline"]) {
    const slider = by(name);
    slider.max = name === "deadline" ? data.deadlines.length : data.axes[name].length - 1;
    slider.value = at[name];
    slider.addEventListener("input", () => { at[name] = Number(slider.value); show(); toAddress(); });
  }
  by("play").addEventListener("submit", (event) => event.preventDefault());
  by("over").addEventListener("change", () => { curves(); toAddress(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
  new ResizeObserver(() => { front(); curves(); }).observe(by("play"));
  show();
})();
