// Looks at a report's page, and writes what is wrong into an element that the test reads.
addEventListener('load', () => {
  const problems = window.problems;
  document.querySelectorAll('details').forEach(details => { details.open = true; });
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const colour = text => {
    const [r, g, b, a = 1] = (text.match(/[\d.]+/g) || [0, 0, 0, 0]).map(Number);
    return [r, g, b, a];
  };
  const over = ([r, g, b, a], below) => [r, g, b].map((part, index) => part * a + below[index] * (1 - a)).concat(1);
  const luminance = parts => {
    const [r, g, b] = parts.map(part => (part /= 255) <= .04045 ? part / 12.92 : ((part + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + .05) / (low + .05);
  };
  const background = element => {
    const layers = [];
    for (let at = element; at; at = at.parentElement) layers.unshift(colour(getComputedStyle(at).backgroundColor));
    // What the browser paints behind a page without a background.
    return layers.reduce((below, layer) => over(layer, below), dark ? [18, 18, 18, 1] : [255, 255, 255, 1]);
  };
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  let looked = 0;
  while (texts.nextNode()) {
    const text = texts.currentNode.data.trim(), element = texts.currentNode.parentElement;
    if (!text || element.closest('script, style') || !element.checkVisibility()) continue;
    const style = getComputedStyle(element), svg = element.closest('svg');
    const below = background(element);
    const ratio = contrast(over(colour(svg ? style.fill : style.color), below), below);
    looked += 1;
    // WCAG 2.2, 1.4.3: what readers with moderately low vision need.
    if (ratio < 4.5) problems.push(`contrast ${ratio.toFixed(2)} of ${JSON.stringify(text.slice(0, 30))}`);
  }
  if (!looked) problems.push('no text');
  const plots = [...document.querySelectorAll('svg')];
  if (!plots.length) problems.push('no plot');
  for (const plot of plots) {
    const { width, height } = plot.getBoundingClientRect();
    if (!(width > 0 && height > 0)) problems.push(`a plot of ${width} x ${height}`);
  }
  const { scrollWidth, clientWidth } = document.documentElement;
  if (scrollWidth > clientWidth) problems.push(`${scrollWidth} pixels wide in a window of ${clientWidth}`);
  const found = document.createElement('pre');
  found.textContent = `FOUND ${dark ? 'dark' : 'light'}, ${innerWidth} wide: ${[...new Set(problems)].join('; ')} END`;
  document.body.append(found);
});
