// main.js: starts the module and the parts. body[data-ready] says that all answer.
'use strict';

async function startPage() {
    const library = await openModule(moduleBytes());
    const redraws = [startSoftmax, startTrace, startTiles, startCosts, startBench]
        .map((start) => start(library));
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () =>
        redraws.forEach((redraw) => redraw()));
    document.body.dataset.ready = String(Math.round(performance.now()));
}

startPage().catch((error) => {
    $('failure').hidden = false;
    $('failure').textContent = `The page could not start: ${error.message}. It needs a browser `
        + 'with WebAssembly and its vectors (2021 or later).';
    throw error;
});
