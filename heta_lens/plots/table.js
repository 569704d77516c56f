(() => {
  const root = document.currentScript?.closest(".heta-heat") ?? document.querySelector(".heta-heat:not(.live)");
  if (!root || root.classList.contains("live")) return;
  root.classList.add("live");
  const data = JSON.parse(root.querySelector("script[type]").textContent), tip = root.querySelector(".tip");
  const values = new Float32Array(Uint8Array.from(atob(data.values), letter => letter.charCodeAt(0)).buffer);
  const value = (row, column) => values[row * data.columns.length + column];
  const place = column => data.positions.length ? ` at ${data.positions[column]}` : "";
  const say = (row, column) => { tip.textContent = `${data.rows[row]}, ${data.columns[column]}${place(column)}: ${+value(row, column).toPrecision(4)}`; };
  heat(root.querySelector(".box"), { rows: data.rows, columns: data.columns, value, deepest: () => data.deepest, point: say, pick: say });
})();
