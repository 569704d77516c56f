/**
 * A table of numbers on a canvas that stays in view while its box scrolls: only what is visible is drawn, in print all.
 * The function that is returned draws a frame around a row and a column, with -1 for none.
 */
const heat = (box, { rows, columns, value, deepest, point, leave, pick, release }) => {
  const size = 16, ratio = window.devicePixelRatio || 1, longest = 260, style = getComputedStyle(box);
  const canvas = document.createElement("canvas"), sheet = document.createElement("div"), pen = canvas.getContext("2d");
  const font = `12px ${style.fontFamily}`;
  pen.font = font;
  const room = names => 12 + Math.ceil(Math.min(longest, Math.max(...names.map(name => pen.measureText(name).width))));
  const left = room(rows), top = room(columns);
  const short = name => pen.measureText(name).width <= longest ? name : `${name.slice(0, 30)}…`;
  let cursor = [-1, -1], waiting = false, wide = size, whole = [];
  sheet.append(canvas);
  box.replaceChildren(sheet);
  const x = column => left + column * wide - box.scrollLeft, y = row => top + row * size - box.scrollTop;
  const paper = matchMedia("print");
  /** Few columns are wider, so that they take the room there is. */
  const fit = () => {
    wide = Math.min(40, Math.max(size, Math.floor((box.clientWidth - left - 2) / columns.length)));
    whole = [left + wide * columns.length + 2, top + size * rows.length + 2];
    sheet.style.cssText = `width:${whole[0]}px;height:${whole[1]}px`;
  };
  const draw = () => {
    if (!paper.matches || !whole.length) fit();
    const [width, height] = paper.matches ? whole : [Math.min(box.clientWidth, sheet.offsetWidth), Math.min(box.clientHeight || 480, sheet.offsetHeight)];
    const [above, below] = ["--pos", "--neg"].map(name => style.getPropertyValue(name));
    canvas.style.cssText = `width:${width}px;height:${height}px`;
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    pen.scale(ratio, ratio);
    pen.font = font;
    const first = [Math.floor(box.scrollTop / size), Math.floor(box.scrollLeft / wide)];
    const inside = (from, end, length, at) => Array.from({ length: length - from }, (_, place) => place + from).filter(place => at(place) < end);
    const down = inside(first[0], height, rows.length, y), across = inside(first[1], width, columns.length, x);
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    for (const row of down) for (const column of across) {
      const number = value(row, column), depth = Math.min(1, Math.abs(number) / deepest(row));
      pen.fillStyle = `rgb(${number < 0 ? below : above} / ${Math.min(.06, 2.5 * depth) + .94 * depth})`;
      pen.fillRect(x(column), y(row), wide - 1, size - 1);
    }
    pen.strokeStyle = style.color;
    if (cursor[0] >= 0) pen.strokeRect(left, y(cursor[0]) - .5, wide * columns.length, size);
    if (cursor[1] >= 0) pen.strokeRect(x(cursor[1]) - .5, top, wide, size * rows.length);
    pen.restore();
    pen.fillStyle = style.color;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    const weight = named => { pen.font = named ? `700 ${font}` : font; };
    for (const row of down) if (y(row) >= top - size / 2) {
      weight(row === cursor[0]);
      pen.fillText(short(rows[row]), left - 6, y(row) + size / 2);
    }
    pen.textAlign = "left";
    for (const column of across) if (x(column) >= left - wide / 2) {
      weight(column === cursor[1]);
      pen.save();
      pen.translate(x(column) + wide / 2, top - 6);
      pen.rotate(-Math.PI / 2);
      pen.fillText(short(columns[column]), 0, 0);
      pen.restore();
    }
  };
  const later = () => {
    if (!waiting) requestAnimationFrame(() => { waiting = false; draw(); });
    waiting = true;
  };
  const cell = event => {
    const { left: from, top: over } = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - over - top + box.scrollTop) / size), column = Math.floor((event.clientX - from - left + box.scrollLeft) / wide);
    const inside = event.clientY - over >= top && event.clientX - from >= left && row < rows.length && column < columns.length;
    return inside ? [row, column] : null;
  };
  const show = (row, column) => {
    cursor = [row, column];
    later();
  };
  box.onscroll = later;
  canvas.onmousemove = event => { const at = cell(event); if (at) point(...at); };
  canvas.onmouseleave = leave;
  canvas.onclick = event => { const at = cell(event); if (at) pick(...at); };
  box.onkeydown = event => {
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (event.altKey || event.ctrlKey || event.metaKey || !(move || ["Enter", "Escape"].includes(event.key))) return;
    event.preventDefault();
    if (event.key === "Escape") return release();
    if (event.key === "Enter") return cursor[0] >= 0 && pick(...cursor);
    const [row, column] = [0, 1].map(at => Math.max(0, Math.min([rows, columns][at].length - 1, Math.max(0, cursor[at]) + (cursor[at] < 0 ? 0 : move[at]))));
    box.scrollLeft = Math.min(column * wide, Math.max(box.scrollLeft, (column + 1) * wide + left - box.clientWidth));
    box.scrollTop = Math.min(row * size, Math.max(box.scrollTop, (row + 1) * size + top - box.clientHeight));
    point(row, column);
  };
  new ResizeObserver(later).observe(box);
  new MutationObserver(later).observe(box.closest(".heta-view"), { attributeFilter: ["class"] });
  paper.addEventListener("change", draw);
  draw();
  return show;
};
