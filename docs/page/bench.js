// bench.js: part 5, the race, in a worker so that the page answers meanwhile. A page from disk can
// start no worker from a file, so the worker's source is put together here.
'use strict';

// The worker: takes turns between the forms, and tells each call's time.
function raceWorker() {
    self.onmessage = async ({ data }) => {
        const library = await openModule(data.bytes);
        if (!library.run('page_bench_open', data.n, data.d, data.causal)) {
            self.postMessage({ error: 'no memory' });
            return;
        }
        for (let turn = 0; turn < data.turns; turn++) {
            for (let form = 0; form < data.forms; form++) {
                const start = performance.now();
                library.run('page_bench_run', form);
                self.postMessage({
                    form, turn, ms: performance.now() - start,
                    distance: library.run('page_bench_distance', form),
                });
            }
        }
        self.postMessage({ done: true });
    };
}

function startBench() {
    const FORMS = ['libattn: tiles, vectors', 'Textbook: three passes over stored scores',
        'Tiles in plain loops'];
    const TURNS = 7;
    let worker = null, times = [], distances = [], choice = null;

    function median(list) {
        const sorted = [...list].sort((a, b) => a - b), half = sorted.length >> 1;
        return sorted.length % 2 ? sorted[half] : (sorted[half - 1] + sorted[half]) / 2;
    }

    function show() {
        const flops = 4 * choice.d * choice.n * (choice.causal ? (choice.n + 1) / 2 : choice.n);
        const heads = ['form', 'median', 'rate', 'beside libattn', 'largest difference of O'];
        const rows = FORMS.map((name, form) => {
            const ms = times[form].length > 0 ? median(times[form]) : null;
            const cells = ms === null ? ['…', '', '', ''] : [`${ms.toFixed(2)} ms`,
                metric(flops / ms * 1e3, 'FLOP/s'),
                `${(ms / median(times[0])).toFixed(1)} × the time`,
                form === 0 ? '' : distances[form].toExponential(1)];
            return make('tr', null, make('th', { scope: 'row' }, name),
                ...cells.map((text) => make('td', null, text)));
        });
        $('bench-results').replaceChildren(make('thead', null, make('tr', null,
            ...heads.map((head) => make('th', { scope: 'col' }, head)))),
        make('tbody', null, ...rows));
    }

    function stop(words) {
        worker.terminate();
        worker = null;
        $('bench-start').disabled = false;
        $('bench-stop').disabled = true;
        $('bench-words').textContent = words;
    }

    function hear({ data }) {
        if (data.error) {
            stop(`The race could not start: ${data.error}.`);
        } else if (data.done) {
            const factor = median(times[1]) / median(times[0]);
            stop(`Done: the library is ${factor.toFixed(1)} times as fast as the textbook's form.`);
        } else {
            times[data.form].push(data.ms);
            distances[data.form] = data.distance;
            $('bench-words').textContent = `Turn ${data.turn + 1} of ${TURNS} …`;
            show();
        }
    }

    function start(event) {
        event.preventDefault();
        choice = {
            n: Number($('bench-n').value), d: Number($('bench-d').value),
            causal: $('bench-causal').checked ? 1 : 0,
        };
        times = FORMS.map(() => []);
        distances = [];
        const source = `'use strict';${openModule.toString()};(${raceWorker.toString()})();`;
        const address = URL.createObjectURL(new Blob([source], { type: 'text/javascript' }));
        worker = new Worker(address);
        URL.revokeObjectURL(address);
        worker.onmessage = hear;
        worker.onerror = (error) => stop(`The race failed: ${error.message}`);
        $('bench-start').disabled = true;
        $('bench-stop').disabled = false;
        $('bench-words').textContent = 'Starting …';
        show();
        worker.postMessage({ bytes: moduleBytes(), forms: FORMS.length, turns: TURNS, ...choice });
    }

    $('bench-form').addEventListener('submit', start);
    $('bench-stop').addEventListener('click', () => stop('Stopped.'));
    return () => {};
}
