// Makes elements of the page without HTML text, so that names of workloads are never interpreted as markup.

/** A new element. Keys of `attributes` that begin with "on" name events; `text` is its text; others are attributes. */
export function el(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "text") made.textContent = value;
    else made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
}

export const find = (id) => document.getElementById(id);

/** Replaces the children of an element. */
export function fill(parent, ...children) {
  parent.replaceChildren(...children.filter((child) => child !== null && child !== undefined));
}

/** Replaces a different text. An equal one stays, so that selections are kept and screen readers do not repeat it. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** An element with the text and the tone of a cell. */
export function toned(cell, tag = "span") {
  return el(tag, { class: cell.tone || null, text: cell.text });
}

/** A table of {caption, columns, right, rows}; `rows` are lists of cells. `last(row number)` makes a last cell. */
export function table(data, last = null) {
  const right = new Set(data.right);
  const head = data.columns.map((name, i) =>
    name ? el("th", { scope: "col", class: right.has(i) ? "n" : null, text: name }) : el("td")
  );
  if (last !== null) head.push(el("th", { scope: "col" }, el("span", { class: "hidden", text: "Actions" })));
  const body = data.rows.map((row, number) => {
    const cells = row.map((cell, i) =>
      el(i === 0 ? "th" : "td", {
        scope: i === 0 ? "row" : null,
        class: [right.has(i) ? "n" : "", cell.tone].filter(Boolean).join(" ") || null,
        text: cell.text,
      })
    );
    if (last !== null) cells.push(el("td", {}, last(number)));
    return el("tr", {}, ...cells);
  });
  return el(
    "table",
    {},
    el("caption", { text: data.caption }),
    el("thead", {}, el("tr", {}, ...head)),
    el("tbody", {}, ...body)
  );
}

/** Elements for the tables and lines of an answer. */
export function parts(list) {
  return list.map((part) =>
    part.kind === "table"
      ? el("div", { class: "wide", tabindex: "0", role: "group", "aria-label": part.caption }, table(part))
      : el("div", { class: "lines" }, ...part.lines.map((line) => toned(line, "p")))
  );
}

/** A moment as text, in this browser's time zone. */
export function moment(unix_s, withDate = false) {
  const at = new Date(unix_s * 1000);
  const two = (number) => String(number).padStart(2, "0");
  const time = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return withDate ? `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())} ${time}` : time;
}

/** A number as text with up to two decimals; a dash if it is missing. */
export function figure(value) {
  if (value === null || value === undefined) return "–";
  const size = Math.abs(value);
  if (size >= 100 || size === 0) return value.toFixed(0);
  return value.toFixed(size >= 10 ? 1 : 2);
}
