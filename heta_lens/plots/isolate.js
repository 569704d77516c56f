/** The view of this script moves into a shadow root, where the styles of the page around it do not reach. */
const isolate = () => {
  const hosts = [...document.querySelectorAll(".heta-lens")].filter(host => !host.shadowRoot);
  const host = document.currentScript?.closest(".heta-lens") ?? hosts[0];  // a notebook may run the script elsewhere
  if (!host || host.shadowRoot) return null;
  const view = host.firstElementChild;
  host.attachShadow({ mode: "open" }).append(view);
  // Listeners must not keep a view that another has replaced; a notebook may also take a view out and put it back.
  const shown = new WeakRef(view);
  const theme = () => {
    const view = shown.deref();
    if (!view?.isConnected) return;
    const [red, green, blue] = getComputedStyle(view.getRootNode().host).color.match(/[\d.]+/g).map(Number);
    view.classList.toggle("dark", .2126 * red + .7152 * green + .0722 * blue > 128);
  };
  // A notebook or a site changes its theme by an attribute, and its colours may take a moment to follow.
  const themed = new MutationObserver(() => [0, 400].forEach(wait => setTimeout(theme, wait)));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", theme);
  for (const page of [document.documentElement, document.body]) themed.observe(page, { attributes: true });
  theme();
  view.classList.add("live");
  return view;
};
