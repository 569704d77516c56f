/** A table of numbers on a canvas that stays in view while its box scrolls: only what is visible is drawn. */
const heat = (box, { rows, columns, value, deepest, point, pick }) => {
  const size = 15, ratio = window.devicePixelRatio || 1, style = getComputedStyle(box);
  const [above, below] = ["--pos", "--neg"].map(name => style.getPropertyValue(name));
  const longest = names => Math.min(16, Math.max(...names.map(name => name.length)));
  const left = 7 * longest(rows) + 14, top = 7 * longest(columns) + 14;
  const canvas = document.createElement("canvas"), sheet = document.createElement("div"), pen = canvas.getContext("2d");
  sheet.style.cssText = `width:${left + size * columns.length + 2}px;height:${top + size * rows.length + 2}px`;
  sheet.append(canvas);
  box.replaceChildren(sheet);
  const short = name => name.length > 16 ? name.slice(0, 15) + "…" : name;
  const draw = () => {
    const width = Math.min(box.clientWidth, sheet.offsetWidth), height = Math.min(box.clientHeight || 480, sheet.offsetHeight);
    canvas.style.cssText = `width:${width}px;height:${height}px`;
    [canvas.width, canvas.height] = [width * ratio, height * ratio];
    pen.scale(ratio, ratio);
    pen.font = "12px ui-monospace, monospace";
    const first = [Math.floor(box.scrollTop / size), Math.floor(box.scrollLeft / size)];
    const x = column => left + column * size - box.scrollLeft, y = row => top + row * size - box.scrollTop;
    const inside = (from, end, length, at) => Array.from({ length: length - from }, (_, place) => place + from).filter(place => at(place) < end);
    const down = inside(first[0], height, rows.length, y), across = inside(first[1], width, columns.length, x);
    pen.save();
    pen.beginPath();
    pen.rect(left, top, width, height);
    pen.clip();
    for (const row of down) for (const column of across) {
      const number = value(row, column), depth = Math.min(1, Math.abs(number) / deepest(row));
      pen.fillStyle = `rgb(${number < 0 ? below : above} / ${depth})`;
      pen.fillRect(x(column), y(row), size - 1, size - 1);
    }
    pen.restore();
    pen.fillStyle = style.color;
    pen.textBaseline = "middle";
    pen.textAlign = "right";
    for (const row of down) if (y(row) >= top - size / 2) pen.fillText(short(rows[row]), left - 6, y(row) + size / 2);
    pen.textAlign = "left";
    for (const column of across) if (x(column) >= left - size / 2) {
      pen.save();
      pen.translate(x(column) + size / 2, top - 6);
      pen.rotate(-Math.PI / 2);
      pen.fillText(short(columns[column]), 0, 0);
      pen.restore();
    }
  };
  const cell = event => {
    const { left: x, top: y } = canvas.getBoundingClientRect();
    const row = Math.floor((event.clientY - y - top + box.scrollTop) / size), column = Math.floor((event.clientX - x - left + box.scrollLeft) / size);
    const inside = event.clientY - y >= top && event.clientX - x >= left && row < rows.length && column < columns.length;
    return inside ? [row, column] : null;
  };
  let waiting = false;
  const later = () => {
    if (!waiting) requestAnimationFrame(() => { waiting = false; draw(); });
    waiting = true;
  };
  box.onscroll = later;
  canvas.onmousemove = event => { const at = cell(event); if (at) point(...at); };
  canvas.onclick = event => { const at = cell(event); if (at && pick) pick(...at); };
  new ResizeObserver(later).observe(box);
  for (const when of ["print", "(prefers-color-scheme: dark)"]) matchMedia(when).addEventListener("change", draw);
  draw();
};
