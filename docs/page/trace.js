// trace.js: part 2, the steps of `attn trace` on a small problem.
'use strict';

function startTrace(library) {
    const CELL = 26;
    let run = null, edited = false, inputs = [];

    function line(choice) {
        return `n=${choice.n} hq=1 d=${choice.d} causal=${$('trace-causal').checked ? 1 : 0}`
            + (choice.window === null ? '' : ` window_left=${choice.window} window_right=-1`)
            + ` seed=${choice.seed}` + ($('trace-backward').checked ? ' pass=training' : '');
    }

    function read() {
        return readFields({
            n: 'trace-n', d: 'trace-d', rows: 'trace-rows', keys: 'trace-keys',
            split: 'trace-split', window: ['trace-window', -1], seed: 'trace-seed',
        }, 'trace-words');
    }

    function buildMatrices(values) {
        inputs = [];
        const blocks = Object.entries(values).map(([name, rows]) => {
            const body = rows.map((row, i) => make('tr', null,
                make('th', { scope: 'row' }, String(i)), ...row.map((x, c) => {
                    const input = make('input', {
                        type: 'number', step: 'any', value: Number(x.toFixed(4)),
                        'aria-label': `${name.toUpperCase()}, row ${i}, column ${c}`,
                    });
                    input.addEventListener('input', () => edit());
                    inputs.push({ name, input });
                    return make('td', null, input);
                })));
            return make('div', { tabindex: 0, role: 'group', 'aria-label': name.toUpperCase() },
                make('table', null, make('caption', null, name.toUpperCase()),
                    make('tbody', null, ...body)));
        });
        $('trace-matrices').replaceChildren(...blocks);
    }

    // Q, K and V as the fields have them, or null after naming a value that is none.
    function readMatrices() {
        const values = { q: [], k: [], v: [] };
        for (const { name, input } of inputs) {
            const x = input.value.trim() === '' ? NaN : Number(input.value);
            if (!Number.isFinite(x) || Math.abs(x) > 1e4) {
                $('trace-words').textContent = 'Values must be numbers from −10000 to 10000.';
                return null;
            }
            values[name].push(x);
        }
        return values;
    }

    function edit() {
        edited = true;
        update(true);
    }

    function renew() {
        edited = false;
        $('trace-preset').value = 'random';
        const choice = read();
        if (choice !== null) {
            choice.window = choice.window < 0 ? null : choice.window;
            buildMatrices(JSON.parse(library.ask('page_values', line(choice))));
            update(false);
        }
    }

    // 8 positions, d = 4, blocks of 4: queries are unit vectors, keys have a 1 at the same place.
    // Every row's maximum is 0.5 after the first tile and stays; l is 3.164, then 6.329.
    function showExample() {
        const place = (i, c) => (c === i % 4 ? 1 : c === (i + 2) % 4 ? 0 : 0.5);
        const matrix = (of) => Array.from({ length: 8 },
            (_, i) => Array.from({ length: 4 }, (_, c) => of(i, c)));
        const form = { n: 8, d: 4, rows: 4, keys: 4, split: 1, window: '' };
        Object.entries(form).forEach(([id, value]) => { $('trace-' + id).value = value; });
        $('trace-causal').checked = false;
        buildMatrices({
            q: matrix((i, c) => (c === i % 4 ? 1 : 0)), k: matrix(place),
            v: matrix((i, c) => Math.round(1e4 * Math.sin(3 * i + c)) / 1e4),
        });
        edit();
        stepper.go(0);
    }

    function update(keep) {
        const choice = read(), values = edited ? readMatrices() : { q: null, k: null, v: null };
        if (choice === null || values === null) {
            return;
        }
        choice.window = choice.window < 0 ? null : choice.window;
        const text = library.ask('page_trace', line(choice), choice.rows, choice.keys, choice.split,
            values.q, values.k, values.v);
        const all = text.trim().split('\n').map((each) => JSON.parse(each));
        if (all[0].error) {
            $('trace-words').textContent = all[0].error;
            return;
        }
        let part = '';
        const steps = [], distances = [];
        all.slice(1).forEach((step) => {
            if (step.step === 'heading') {
                part = step.text;
            } else if (step.step === 'distance') {
                distances.push(step);
            } else {
                steps.push({ ...step, part });
            }
        });
        run = { choice, steps, distances, text };
        stepper.reset(steps.length, keep ? stepper.at : 0);
        $('trace-verdict').textContent = 'Largest distances from the library: '
            + distances.map((d) => `${d.from} ${d.largest.toExponential(1)}`).join(', ') + '.';
    }

    // ---- the picture ----

    function drawTile(picture, step, now) {
        const fill = { FULL: 'full', PARTIAL: 'partial', SKIP: 'skipped' }[step.kind];
        picture.append(make('rect', {
            x: 30 + step.key * CELL + 1, y: 22 + step.row * CELL + 1, width: step.keys * CELL - 2,
            height: step.rows * CELL - 2, rx: 4, fill: colour(fill),
            opacity: step.kind === 'SKIP' ? 1 : now ? 1 : 0.5,
            stroke: now ? colour('ink') : 'none', 'stroke-width': 3,
        }));
    }

    function draw(at) {
        const n = run.choice.n, size = 34 + n * CELL;
        const picture = clearPicture('trace-picture', size, size - 6);
        picture.append(make('rect', {
            x: 30, y: 22, width: n * CELL, height: n * CELL, fill: colour('grid'), rx: 4,
        }));
        const kind = run.steps[at].step === 'grad_tile' ? 'grad_tile' : 'tile';
        const tiles = run.steps.slice(0, at + 1).filter((step) => step.step === kind);
        tiles.forEach((step, i) => drawTile(picture, step,
            i === tiles.length - 1 && step === run.steps[at]));
        for (let i = 0; i < n; i++) {
            picture.append(make('text', {
                x: 30 + i * CELL + CELL / 2, y: 16, 'text-anchor': 'middle',
            }, String(i)), make('text', {
                x: 24, y: 22 + i * CELL + CELL / 2 + 4, 'text-anchor': 'end',
            }, String(i)));
            for (let j = 0; j < n; j++) {
                picture.append(make('circle', {
                    cx: 30 + j * CELL + CELL / 2, cy: 22 + i * CELL + CELL / 2,
                    r: sees(i, j) ? 2.5 : 0.8, fill: colour('ink'), opacity: sees(i, j) ? 0.7 : 0.4,
                }));
            }
        }
        picture.setAttribute('aria-label', `Rows 0 to ${n - 1} and keys 0 to ${n - 1}. `
            + `${tiles.length} tiles so far.`);
    }

    // As the trace's scores say it.
    function sees(i, j) {
        const tile = run.steps.find((step) => step.step === 'tile' && i >= step.row
            && i < step.row + step.rows && j >= step.key && j < step.key + step.keys);
        return tile !== undefined && tile.kind !== 'SKIP'
            && tile.scores[i - tile.row][j - tile.key] !== null;
    }

    // ---- the numbers ----

    const cell = (x) => make('td', { class: x === null ? 'masked' : null },
        x === null ? '−∞' : decimal(x));

    function table(caption, heads, rows, first) {
        return make('table', null, make('caption', null, caption),
            make('thead', null, make('tr', null, make('th', { scope: 'col' }, first.name),
                ...heads.map((head) => make('th', { scope: 'col' }, head)))),
            make('tbody', null, ...rows.map((row, i) => make('tr', null,
                make('th', { scope: 'row' }, String(first.at + i)), ...row.map(cell)))));
    }

    const counted = (name, count, from) => Array.from({ length: count },
        (_, i) => `${name} ${from + i}`);
    const columns = (grid) => counted('col', grid[0].length, 0);

    function showTile(step) {
        const row = { name: 'row', at: step.row };
        const state = step.scores.map((scores, i) => [...scores, step.tile_maximum[0][i],
            step.maximum[0][i], step.alpha[0][i], step.sum[0][i]]);
        return [table('Scores, and the state of each row', [...counted('key', step.keys, step.key),
            'tile max', 'm', 'alpha', 'l'], state, row),
        table('O before', columns(step.o_before), step.o_before, row),
        table('O = O alpha + P V', columns(step.o_after), step.o_after, row)];
    }

    function showGradTile(step) {
        const row = { name: 'row', at: step.row }, key = { name: 'key', at: step.key };
        const keys = counted('key', step.keys, step.key);
        return [table('P = exp(S − LSE), computed again', keys, step.p, row),
            table('dP = dO Vᵀ', keys, step.dp, row),
            table('dS = P (dP − delta)', keys, step.ds, row),
            table('dQ so far', columns(step.dq), step.dq, row),
            table('dK so far', columns(step.dk), step.dk, key),
            table('dV so far', columns(step.dv), step.dv, key)];
    }

    function tablesOf(step) {
        const rows = { name: 'row', at: 0 }, keys = { name: 'key', at: 0 };
        switch (step.kind === 'SKIP' ? 'skip' : step.step) {
        case 'tile':
            return showTile(step);
        case 'grad_tile':
            return showGradTile(step);
        case 'sums':
            return [table('O = O / l', columns(step.o), step.o, rows),
                table('LSE = m + log l', ['LSE'], step.lse[0].map((x) => [x]), rows)];
        case 'weights':
            return [table('Weights of the parts', counted('row', step.weight[0].length, 0),
                step.weight, { name: 'part', at: 0 })];
        case 'gradients':
            return [table('dQ', columns(step.dq), step.dq, rows),
                table('dK', columns(step.dk), step.dk, keys),
                table('dV', columns(step.dv), step.dv, keys)];
        default:
            return [];
        }
    }

    function wordsOf(step) {
        const place = `Rows ${step.row} to ${step.row + step.rows - 1}, keys ${step.key} to `
            + `${step.key + step.keys - 1}`;
        const part = step.part.startsWith('part') ? `${step.part.split(':')[0]}. ` : '';
        switch (step.step) {
        case 'tile':
        case 'grad_tile':
            return part + (step.step === 'grad_tile' ? 'Backward pass. ' : '') + `${place}: `
                + { SKIP: 'SKIP. The mask hides all of it, so nothing is read or computed.',
                    FULL: 'FULL. No entry needs a mask.',
                    PARTIAL: 'PARTIAL. Masked scores become −∞ and weigh nothing.' }[step.kind];
        case 'sums':
            return part ? `${part}The sums of this part.`
                : 'The end: each row of O is divided by l.';
        case 'weights':
            return 'Merge: each part weighs exp(its LSE − the LSE of all).';
        default:
            return 'The gradients of all rows and keys.';
        }
    }

    function show(at) {
        const step = run.steps[at], scroll = $('trace-numbers');
        draw(at);
        scroll.replaceChildren(...tablesOf(step));
        $('trace-words').textContent = wordsOf(step);
    }

    const stepper = new Stepper('trace-stepper', 'Trace', show);
    $('trace-preset').addEventListener('change', () =>
        ($('trace-preset').value === 'units' ? showExample() : renew()));
    ['n', 'd', 'seed'].forEach((id) => $('trace-' + id).addEventListener('change', renew));
    ['rows', 'keys', 'split', 'window', 'causal', 'backward'].forEach((id) =>
        $('trace-' + id).addEventListener('change', () => update(false)));
    $('trace-form').addEventListener('submit', (event) => event.preventDefault());
    renew();
    return () => stepper.jump(stepper.at);
}
