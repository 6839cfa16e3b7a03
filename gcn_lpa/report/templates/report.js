"use strict";
(() => {
  const $ = id => document.getElementById(id);
  const view = JSON.parse($("view").textContent);
  const unpack = (text, Kind) => {
    const raw = atob(text), bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return new Kind(bytes.buffer);
  };
  const xy = unpack(view.xy, Uint16Array), label = unpack(view.label, Uint16Array), sure = unpack(view.probability, Uint16Array);
  const kind = unpack(view.kind, Uint8Array), status = unpack(view.status, Uint8Array), truth = unpack(view.truth, Int16Array);
  const source = unpack(view.source, Uint16Array), target = unpack(view.target, Uint16Array), weight = unpack(view.weight, Uint8Array);
  const names = view.names, n = names.length, numEdges = source.length;
  const place = new Map(names.map((name, i) => [name, i]));
  const colour = k => view.colors[k % view.colors.length];
  const percent = p => (100 * p).toFixed(p > 0.9995 || p < 0.0005 ? 0 : 1) + " %";
  const number = value => value >= 0.0005 || value === 0 ? value.toFixed(3) : value.toExponential(0);
  const probability = i => sure[i] / 65535;
  const said = i => view.values ? view.values[i] : percent(probability(i));

  // Text stays text: elements are made here, and strings are only ever set as textContent.
  const make = (tag, css, ...children) => {
    const element = document.createElement(tag);
    if (css) element.className = css;
    for (const child of children) if (child !== null) element.append(child);
    return element;
  };

  // ---------- neighbours
  const degree = new Uint32Array(n + 1);
  for (let e = 0; e < numEdges; e++) { degree[source[e] + 1]++; degree[target[e] + 1]++; }
  for (let i = 0; i < n; i++) degree[i + 1] += degree[i];
  const around = new Uint32Array(2 * numEdges), next = degree.slice();
  for (let e = 0; e < numEdges; e++) { around[next[source[e]]++] = e; around[next[target[e]]++] = e; }
  const neighbours = i => {
    const found = [];
    for (let k = degree[i]; k < degree[i + 1]; k++) {
      const e = around[k];
      found.push([source[e] === i ? target[e] : source[e], weight[e]]);
    }
    return found.sort((a, b) => b[1] - a[1]);
  };

  // ---------- drawing
  const canvas = $("canvas"), tip = $("tip"), panel = $("panel");
  let pen = canvas.getContext("2d");
  const hiddenClass = new Set();
  let scale = 1, dx = 0, dy = 0, width = 0, height = 0, chosen = -1, hovered = -1, waiting = false, busy = false, rest = 0;
  const style = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const X = i => xy[2 * i] / 65535 * scale + dx, Y = i => xy[2 * i + 1] / 65535 * scale + dy;
  const zoomed = () => scale / Math.min(width, height);
  const unit = () => Math.min(9, Math.max(1.4, 150 / Math.sqrt(n))) * Math.min(3, Math.pow(zoomed(), 0.6));
  const radius = i => unit() * (0.45 + 0.75 * probability(i));
  const SHAPES = {
    o: (x, y, r) => { pen.moveTo(x + r, y); pen.arc(x, y, r, 0, 6.2832); },
    s: (x, y, r) => pen.rect(x - 0.88 * r, y - 0.88 * r, 1.76 * r, 1.76 * r),
    "^": (x, y, r) => polygon(x, y, 1.25 * r, 3, -Math.PI / 2),
    v: (x, y, r) => polygon(x, y, 1.25 * r, 3, Math.PI / 2),
    D: (x, y, r) => polygon(x, y, 1.2 * r, 4, 0),
    p: (x, y, r) => polygon(x, y, 1.1 * r, 5, -Math.PI / 2),
    h: (x, y, r) => polygon(x, y, 1.1 * r, 6, 0),
    P: (x, y, r) => cross(x, y, r, 0),
    X: (x, y, r) => cross(x, y, r, Math.PI / 4),
  };
  const polygon = (x, y, r, corners, turn) => {
    for (let k = 0; k < corners; k++) {
      const angle = turn + 2 * Math.PI * k / corners;
      pen[k ? "lineTo" : "moveTo"](x + r * Math.cos(angle), y + r * Math.sin(angle));
    }
    pen.closePath();
  };
  const cross = (x, y, r, turn) => {
    const a = 1.1 * r, b = 0.4 * r, c = Math.cos(turn), s = Math.sin(turn);
    [[a, b], [b, b], [b, a], [-b, a], [-b, b], [-a, b], [-a, -b], [-b, -b], [-b, -a], [b, -a], [b, -b], [a, -b]].forEach(
      ([u, v], k) => pen[k ? "lineTo" : "moveTo"](x + u * c - v * s, y + u * s + v * c));
    pen.closePath();
  };
  const seen = i => !hiddenClass.has(label[i]);

  const drawEdges = ink => {
    const buckets = [[], [], [], []];
    for (let e = 0; e < numEdges; e++) buckets[weight[e] >> 6].push(e);
    pen.strokeStyle = ink;
    const thin = Math.min(1, 0.25 + 12 / Math.sqrt(numEdges)) * Math.min(1.6, Math.sqrt(zoomed()));
    const faded = chosen < 0 ? 1 : 0.45;
    buckets.forEach((edges, k) => {
      pen.lineWidth = thin * (0.5 + 0.85 * k);
      pen.globalAlpha = faded * Math.min(0.75, (0.12 + 0.13 * k) * (numEdges > 10000 ? 0.6 : 1.4));
      pen.beginPath();
      for (const e of edges) {
        const a = source[e], b = target[e];
        if (!seen(a) || !seen(b)) continue;
        const x0 = X(a), y0 = Y(a), x1 = X(b), y1 = Y(b);
        if ((x0 < 0 && x1 < 0) || (y0 < 0 && y1 < 0) || (x0 > width && x1 > width) || (y0 > height && y1 > height)) continue;
        pen.moveTo(x0, y0); pen.lineTo(x1, y1);
      }
      pen.stroke();
    });
    pen.globalAlpha = 1;
  };

  const drawNodes = (ring, ground) => {
    const byClass = view.classes.map(() => []);
    for (let i = 0; i < n; i++) {
      const x = X(i), y = Y(i);
      if (seen(i) && x > -20 && y > -20 && x < width + 20 && y < height + 20) byClass[label[i]].push(i);
    }
    byClass.forEach((nodes, k) => {
      const shape = SHAPES[view.shapes[k]], small = unit() < 2.2;
      pen.fillStyle = colour(k);
      pen.beginPath();
      for (const i of nodes) {
        const r = radius(i);
        if (small) pen.rect(X(i) - r, Y(i) - r, 2 * r, 2 * r); else shape(X(i), Y(i), r);
      }
      pen.fill();
      if (!small) { pen.strokeStyle = ground; pen.lineWidth = 0.8; pen.stroke(); }
      pen.strokeStyle = ring; pen.lineWidth = Math.min(1.8, 0.2 * unit());
      pen.beginPath();
      for (const i of nodes) if (kind[i] === 1) shape(X(i), Y(i), radius(i));
      if (!small) pen.stroke();
    });
  };

  const drawPaths = ink => {
    const why = view.explanations[names[chosen]];
    if (!why) return;
    pen.strokeStyle = ink;
    why.votes.forEach(vote => {
      const path = vote[3].map(name => place.get(name)).filter(i => i !== undefined);
      pen.lineWidth = 1.5 + 5 * vote[2];
      pen.beginPath();
      path.forEach((i, k) => pen[k ? "lineTo" : "moveTo"](X(i), Y(i)));
      pen.stroke();
    });
  };

  const write = (i, ink, ground, taken = null) => {  // where `taken` lists boxes, only into free room
    const x = X(i) + radius(i) + 5, y = Y(i) + 4, text = names[i].length > 30 ? names[i].slice(0, 29) + "…" : names[i];
    pen.font = "600 13px system-ui, sans-serif";
    if (taken) {
      const right = x + pen.measureText(text).width;
      if (taken.some(box => x < box[1] && right > box[0] && Math.abs(y - box[2]) < 15)) return;
      taken.push([x, right, y]);
    }
    pen.lineWidth = 4; pen.strokeStyle = ground; pen.strokeText(text, x, y);
    pen.fillStyle = ink; pen.fillText(text, x, y);
  };

  const draw = () => {
    waiting = false;
    const ring = style("--ring"), ground = style("--ground"), ink = style("--ink"), accent = style("--accent");
    pen.setTransform(devicePixelRatio, 0, 0, devicePixelRatio, 0, 0);
    pen.clearRect(0, 0, width, height);
    pen.lineJoin = "round";
    if (!busy || numEdges < 8000) drawEdges(style("--edge"));
    if (chosen >= 0) {
      pen.strokeStyle = accent; pen.lineWidth = 1.2; pen.globalAlpha = 0.8;
      pen.beginPath();
      for (const [j] of neighbours(chosen)) { pen.moveTo(X(chosen), Y(chosen)); pen.lineTo(X(j), Y(j)); }
      pen.stroke(); pen.globalAlpha = 1;
      drawPaths(accent);
    }
    drawNodes(ring, ground);
    const few = n <= 40 && width > 500;
    const taken = [];
    for (let i = 0; i < n && few; i++) taken.push([X(i) - 6, X(i) + 6, Y(i) + 4]);
    for (let i = 0; few && i < n; i++) if (seen(i) && i !== chosen && i !== hovered) write(i, style("--soft"), ground, taken);
    for (const i of [hovered, chosen]) if (i >= 0) {
      pen.strokeStyle = i === chosen ? accent : ring; pen.lineWidth = 3;
      pen.beginPath(); pen.arc(X(i), Y(i), radius(i) + 4, 0, 6.2832); pen.stroke();
      write(i, ink, ground);
    }
    document.documentElement.dataset.drawn = String(n);
  };
  const redraw = () => { if (!waiting) { waiting = true; requestAnimationFrame(draw); } };
  const moving = () => { busy = true; clearTimeout(rest); rest = setTimeout(() => { busy = false; redraw(); }, 140); redraw(); };

  const fit = () => {
    const margin = Math.min(40, width / 12);
    scale = Math.min(width, height) - 2 * margin;
    dx = (width - scale) / 2; dy = (height - scale) / 2;
    redraw();
  };
  const resize = () => {
    const box = canvas.getBoundingClientRect(), first = !width;
    const shiftX = (box.width - width) / 2, shiftY = (box.height - height) / 2;
    width = box.width; height = box.height;
    canvas.width = Math.round(width * devicePixelRatio); canvas.height = Math.round(height * devicePixelRatio);
    if (first || chosen < 0) fit(); else { dx += shiftX; dy += shiftY; redraw(); }
  };
  const zoom = (factor, x = width / 2, y = height / 2) => {
    const limit = Math.min(Math.max(scale * factor, 60), 80 * Math.min(width, height)), real = limit / scale;
    dx = x - (x - dx) * real; dy = y - (y - dy) * real; scale = limit;
    moving();
  };
  const nearest = (x, y) => {
    let best = -1, distance = Infinity;
    for (let i = 0; i < n; i++) {
      if (!seen(i)) continue;
      const far = Math.hypot(X(i) - x, Y(i) - y) - radius(i);
      if (far < distance) { distance = far; best = i; }
    }
    return distance < 8 ? best : -1;
  };

  // ---------- pointer and keys
  const held = new Map();
  let travelled = 0, pinch = 0;
  const at = event => { const box = canvas.getBoundingClientRect(); return [event.clientX - box.left, event.clientY - box.top]; };
  canvas.addEventListener("pointerdown", event => { canvas.setPointerCapture(event.pointerId); held.set(event.pointerId, at(event)); travelled = 0; pinch = 0; });
  canvas.addEventListener("pointermove", event => {
    const [x, y] = at(event), before = held.get(event.pointerId);
    if (before) {
      held.set(event.pointerId, [x, y]);
      if (held.size === 2) {
        const [a, b] = [...held.values()], gap = Math.hypot(a[0] - b[0], a[1] - b[1]);
        if (pinch) zoom(gap / pinch, (a[0] + b[0]) / 2, (a[1] + b[1]) / 2);
        pinch = gap; travelled = 99;
      } else { dx += x - before[0]; dy += y - before[1]; travelled += Math.abs(x - before[0]) + Math.abs(y - before[1]); moving(); }
      return;
    }
    const found = nearest(x, y);
    canvas.classList.toggle("on", found >= 0);
    if (found !== hovered) { hovered = found; redraw(); }
    tip.hidden = found < 0;
    if (found >= 0) {
      tip.textContent = `${view.values ? "" : view.classes[label[found]] + ", "}${said(found)}${kind[found] ? " · " + view.kinds[kind[found]] : ""}`;
      tip.style.left = Math.min(x + 14, width - 180) + "px"; tip.style.top = y + 18 + "px";
    }
  });
  const release = event => {
    const was = held.delete(event.pointerId), [x, y] = at(event);
    if (was && travelled < 6) { const found = nearest(x, y); if (found >= 0) choose(names[found], false); }
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", event => held.delete(event.pointerId));
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; if (hovered >= 0) { hovered = -1; redraw(); } });
  canvas.addEventListener("wheel", event => { event.preventDefault(); zoom(Math.exp(-event.deltaY * 0.0015), ...at(event)); }, { passive: false });
  canvas.addEventListener("keydown", event => {
    const moves = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] }[event.key];
    if (moves) { dx += moves[0]; dy += moves[1]; moving(); }
    else if (event.key === "+" || event.key === "=") zoom(1.3);
    else if (event.key === "-") zoom(1 / 1.3);
    else if (event.key === "Escape" || event.key === "0") fit();
    else return;
    event.preventDefault();
  });
  $("zoom-in").addEventListener("click", () => zoom(1.5));
  $("zoom-out").addEventListener("click", () => zoom(1 / 1.5));
  $("zoom-all").addEventListener("click", fit);

  // ---------- a class: its mark, and the legend
  const swatch = k => {
    const small = make("canvas", "swatch"), own = pen;
    small.width = small.height = 28; small.setAttribute("aria-hidden", "true");
    pen = small.getContext("2d");
    pen.fillStyle = colour(k); pen.beginPath(); SHAPES[view.shapes[k]](14, 14, 10); pen.fill();
    pen = own;
    return small;
  };
  const classText = k => make("span", "", swatch(k), view.classes[k]);
  const counts = view.classes.map(() => 0);
  for (let i = 0; i < n; i++) counts[label[i]]++;
  view.classes.forEach((name, k) => {
    const box = make("input");
    box.type = "checkbox"; box.checked = true;
    box.addEventListener("change", () => { if (box.checked) hiddenClass.delete(k); else hiddenClass.add(k); redraw(); });
    $("legend").append(make("label", "", box, swatch(k), name, make("small", "", counts[k].toLocaleString("en"))));
  });

  // ---------- the chosen node
  const nodeButton = name => { const button = make("button", "node", name); button.type = "button"; button.dataset.node = name; return button; };
  const bars = (name, model, lpa) => {
    const row = make("div", "two-bars", name, make("span", "n", percent(model)));
    for (const [css, value] of [["track", model], ["track lpa", lpa]]) {
      const inner = make("i"); inner.style.width = 100 * value + "%";
      row.append(make("div", css, inner));
    }
    return row;
  };
  const explained = (box, why) => {
    box.replaceChildren();
    box.append(make("h4", "", `${why.method} (full) and label propagation (hatched)`));
    const k = name => view.classes.indexOf(name);
    for (const [name, model, lpa] of why.classes) if (model >= 0.005 || lpa >= 0.005) box.append(bars(classText(k(name)), model, lpa));
    if (why.number) box.append(make("p", "", `${why.method} ${why.number[0]}` + (why.number[1] ? `, label propagation ${why.number[1]}` : "")));
    else if (why.lpa) box.append(make("p", "hint", why.agree ? "Label propagation agrees." : `Label propagation predicts ${why.lpa}.`));
    if (why.votes.length) {
      box.append(make("h4", "", `Labels that vote, within ${why.hops} hop${why.hops > 1 ? "s" : ""}`));
      const list = make("ul");
      for (const [voter, name, share, path] of why.votes)
        list.append(make("li", "vote", make("span", "", nodeButton(voter), " ", view.values ? name : classText(k(name))), make("span", "n", number(share)),
          path.length > 2 ? make("small", "", path.join(" → ")) : null));
      if (why.others[0]) list.append(make("li", "vote", make("span", "", `${why.others[0].toLocaleString("en")} others`), make("span", "n", number(why.others[1]))));
      box.append(list);
    }
    if (why.features.length) {
      box.append(make("h4", "", "Whose features it reads"));
      const list = make("ul");
      for (const [name, share] of why.features) list.append(make("li", "vote", nodeButton(name), make("span", "n", number(share))));
      box.append(list);
    }
    if (why.columns.length) {
      box.append(make("h4", "", "Its columns"));
      const list = make("ul");
      for (const [name, cell] of why.columns) list.append(make("li", "vote", make("span", "", name), make("span", "n", cell || "–")));
      box.append(list);
    }
    for (const note of why.notes) box.append(make("p", "hint", note));
  };
  const facts = (name, i) => {
    const parts = [make("h3", "", name)];
    if (i === undefined) return [...parts, make("p", "hint", "This node is not in the sample that is drawn.")];
    parts.push(make("p", "", classText(label[i]), make("strong", "", " " + said(i))));
    if (view.values && kind[i]) parts.push(make("p", "hint", `Label ${kind[i] === 1 ? "given" : "in the file, " + view.kinds[kind[i]]}: ${view.given[i]}.`));
    else if (kind[i] === 1) parts.push(make("p", truth[i] === label[i] ? "hint" : "error", `Label given: ${view.classes[truth[i]]}.`));
    else if (kind[i] && truth[i] >= 0) parts.push(make("p", truth[i] === label[i] ? "hint" : "error", `Label in the file, ${view.kinds[kind[i]]}: ${view.classes[truth[i]]}.`));
    else parts.push(make("p", "hint", view.statuses[status[i]] === "unreachable" ? "No label, and none can reach it." : "No label in the file."));
    return parts;
  };
  const choose = async (name, centre = true) => {
    const i = place.get(name);
    chosen = i === undefined ? -1 : i;
    if (centre && i !== undefined && n > 200) {
      if (zoomed() < 1.5) scale = Math.min(width, height) * Math.min(12, Math.sqrt(n / 60));
      dx = width / 2 - xy[2 * i] / 65535 * scale; dy = height / 2 - xy[2 * i + 1] / 65535 * scale;
    }
    const box = make("div");
    panel.replaceChildren(...facts(name, i), box);
    panel.dataset.node = name;
    if (view.explanations[name]) explained(box, view.explanations[name]);
    else if (view.live) {
      box.append(make("p", "hint", "Asking …"));
      try {
        const why = await ask("explain?node=" + encodeURIComponent(name));
        view.explanations[name] = why;
        if (panel.dataset.node === name) explained(box, why);
      } catch (error) { box.replaceChildren(make("p", "error", error.message)); }
    } else box.append(make("p", "hint", `The votes of ${Object.keys(view.explanations).length} nodes are in this file, not of this one: gcn-lpa report RUN --serve, or gcn-lpa explain RUN --node ID, tells them.`));
    if (i !== undefined) {
      const near = neighbours(i);
      panel.append(make("h4", "", `${near.length.toLocaleString("en")} neighbour${near.length === 1 ? "" : "s"} drawn`));
      const list = make("ul");
      for (const [j] of near.slice(0, 12)) list.append(make("li", "", nodeButton(names[j]), " ", classText(label[j])));
      if (near.length > 12) list.append(make("li", "hint", `… and ${near.length - 12} more`));
      panel.append(list);
      if (view.live) panel.append(whatIf(name, i, near));
    }
    redraw();
  };
  document.addEventListener("click", event => {
    const button = event.target.closest && event.target.closest("button.node");
    if (!button) return;
    const inside = panel.contains(button);
    choose(button.dataset.node);
    if (!inside) $("graph").scrollIntoView();
    if (!inside || !document.contains(button)) { panel.tabIndex = -1; panel.focus({ preventScroll: true }); }
  });

  // ---------- questions to the server
  const ask = async (path, body) => {
    const options = body ? { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) } : {};
    const reply = await fetch(path, options), found = await reply.json();
    if (!reply.ok) throw new Error(found.error || `the server says ${reply.status}`);
    return found;
  };
  const whatIf = (name, i, near) => {
    const choice = make("select"), go = make("button", "action", "What if?"), said = make("div");
    choice.setAttribute("aria-label", "What if this node or an edge of it were other");
    const option = (text, body) => { const one = make("option", "", text); one.value = JSON.stringify(body); choice.append(one); };
    const trained = kind[i] === 1;
    if (!view.values) view.classes.forEach((label_, k) => { if (!trained || k !== truth[i]) option(`it had the label ${label_}`, { [trained ? "relabel" : "label"]: [[name, label_]] }); });
    if (trained) option("it had no label", { unlabel: [name] });
    for (const [j] of near.slice(0, 30)) option(`it had no edge to ${names[j]}`, { remove_edges: [[name, names[j]]] });
    go.type = "button"; go.id = "what-if";
    go.addEventListener("click", async () => {
      go.disabled = true; said.replaceChildren(make("p", "hint", "Asking …"));
      try {
        const found = await ask("what-if", JSON.parse(choice.value));
        said.replaceChildren(make("p", "hint", found.asked.join("; ")));
        for (const [who, shift] of [[found.method, found.model], [`label propagation, ${found.hops} hops`, found.lpa]]) {
          said.append(make("p", "", `${who}: ${shift.num_changes.toLocaleString("en")} of ${found.num_nodes.toLocaleString("en")} predictions change; the scores of ${shift.num_moved.toLocaleString("en")} move, by ${number(shift.largest_move)} at most.`));
          const list = make("ul");
          for (const one of shift.changes.slice(0, 12)) list.append(make("li", "", nodeButton(String(one.node)), ` ${one.before || "none"} → ${one.after || "none"}`));
          said.append(list);
        }
        for (const note of found.notes) said.append(make("p", "hint", note));
      } catch (error) { said.replaceChildren(make("p", "error", error.message)); }
      said.dataset.answered = "yes"; go.disabled = false;
    });
    said.id = "answer";
    return make("div", "", make("h4", "", "What if"), make("div", "wide", choice, go), said);
  };

  // ---------- search
  const search = $("search"), matches = $("matches"), lower = names.map(name => name.toLowerCase());
  let picked = -1;
  const close = () => { matches.hidden = true; picked = -1; search.setAttribute("aria-expanded", "false"); search.removeAttribute("aria-activedescendant"); };
  const mark = k => {
    picked = k;
    [...matches.children].forEach((item, j) => item.setAttribute("aria-selected", String(j === k)));
    if (k >= 0) search.setAttribute("aria-activedescendant", matches.children[k].id);
  };
  const find = () => {
    const text = search.value.trim().toLowerCase(), starts = [], holds = [];
    for (let i = 0; text && i < n && starts.length < 8; i++) {
      if (lower[i] === text) starts.unshift(i); else if (lower[i].startsWith(text)) starts.push(i); else if (holds.length < 8 && lower[i].includes(text)) holds.push(i);
    }
    const found = [...starts, ...holds].slice(0, 8);
    matches.replaceChildren(...found.map((i, k) => {
      const item = make("li", "", names[i]);
      item.id = "match-" + k; item.setAttribute("role", "option"); item.dataset.name = names[i];
      return item;
    }));
    if (text && !found.length) { const none = make("li", "hint", "no such node is drawn"); none.setAttribute("role", "option"); matches.append(none); }
    matches.hidden = !text; search.setAttribute("aria-expanded", String(!!text));
    mark(found.length ? 0 : -1);
  };
  const take = async item => {
    const name = item && item.dataset.name ? item.dataset.name : search.value.trim();
    close();
    if (name && (place.has(name) || view.live)) { search.value = name; await choose(name); }
  };
  search.addEventListener("input", find);
  search.addEventListener("keydown", event => {
    const last = matches.children.length - 1;
    if (event.key === "ArrowDown" && last >= 0) mark(Math.min(last, picked + 1));
    else if (event.key === "ArrowUp" && last >= 0) mark(Math.max(0, picked - 1));
    else if (event.key === "Escape") close();
    else return;
    event.preventDefault();
  });
  $("search-form").addEventListener("submit", event => { event.preventDefault(); take(matches.children[picked]); });
  matches.addEventListener("pointerdown", event => { event.preventDefault(); take(event.target.closest("li")); });
  search.addEventListener("blur", close);

  // ---------- the cut of a rare class
  if (view.cuts) {
    const slider = $("cut"), marks = document.querySelectorAll("#rare .mark"), whole = value => Math.round(value).toLocaleString("en");
    const range = (value, low, high, words) => words(value) + " (" + words(low) + " to " + words(high) + ")";
    const cut = () => {
      const { cut: [called, threshold, ...r], spots } = view.cuts[slider.value];
      $("cut-words").textContent = whole(called) + " nodes, from probability " + number(threshold) + " on: expect " + range(r[0], r[1], r[2], whole) + " hits, precision "
        + range(r[3], r[4], r[5], percent) + ", recall " + range(r[6], r[7], r[8], percent) + ".";
      slider.setAttribute("aria-valuetext", whole(called) + " nodes");
      marks.forEach((mark, k) => { mark.setAttribute("cx", spots[2 * k]); mark.setAttribute("cy", spots[2 * k + 1]); });
    };
    slider.addEventListener("input", cut);
    cut();
  }

  new ResizeObserver(resize).observe(canvas);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", draw);
})();
