/** The view of this script moves into a shadow root, where the styles of the page around it do not reach. */
const isolate = () => {
  const hosts = [...document.querySelectorAll(".heta-lens")].filter(host => !host.shadowRoot);
  const host = document.currentScript?.closest(".heta-lens") ?? hosts[0];  // a notebook may run the script elsewhere
  if (!host || host.shadowRoot) return null;
  const view = host.firstElementChild;
  host.attachShadow({ mode: "open" }).append(view);
  const theme = () => {
    const [red, green, blue] = getComputedStyle(host).color.match(/[\d.]+/g).map(Number);
    view.classList.toggle("dark", .2126 * red + .7152 * green + .0722 * blue > 128);
  };
  theme();
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
  // A notebook or a site changes its theme by an attribute, and its colours may take a moment to follow.
  const themed = new MutationObserver(() => [0, 400].forEach(wait => setTimeout(theme, wait)));
  for (const page of [document.documentElement, document.body]) themed.observe(page, { attributes: true });
  view.classList.add("live");
  return view;
};
