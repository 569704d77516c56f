/** The view of this script moves into a shadow root, where the styles of the page around it do not reach. */
const isolate = () => {
  const hosts = [...document.querySelectorAll(".heta-lens")].filter(host => !host.shadowRoot);
  const host = document.currentScript?.closest(".heta-lens") ?? hosts[0];  // a notebook may run the script elsewhere
  if (!host || host.shadowRoot) return null;
  const view = host.firstElementChild;
  host.attachShadow({ mode: "open" }).append(view);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const theme = () => {
    if (!host.isConnected) {  // a later view took its place
      themed.disconnect();
      return dark.removeEventListener("change", theme);
    }
    const [red, green, blue] = getComputedStyle(host).color.match(/[\d.]+/g).map(Number);
    view.classList.toggle("dark", .2126 * red + .7152 * green + .0722 * blue > 128);
  };
  // A notebook or a site changes its theme by an attribute, and its colours may take a moment to follow.
  const themed = new MutationObserver(() => [0, 400].forEach(wait => setTimeout(theme, wait)));
  dark.addEventListener("change", theme);
  for (const page of [document.documentElement, document.body]) themed.observe(page, { attributes: true });
  theme();
  view.classList.add("live");
  return view;
};
