/** Elements and texts that the views and the app share. */
const make = (tag, text = "", attributes = {}, ...children) => {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const name in attributes) element.setAttribute(name, attributes[name]);
  element.append(...children);
  return element;
};
const percent = share => share > 0 && share < .001 ? "<0.1%" : share < 1 && share > .999 ? ">99.9%" : `${(100 * share).toFixed(1)}%`;
const clip = (text, length = 60) => text.length > length ? `${text.slice(0, length - 1)}…` : text;
/** A name that breaks after an underscore rather than inside a word. */
const breakable = name => make("span", "", {}, ...name.split(/(?<=_)/).flatMap(part => [part, make("wbr")]));
