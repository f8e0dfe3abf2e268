// softmax.js: part 1, the online softmax over an editable row of scores.
'use strict';

function startSoftmax(library) {
    const presets = {
        mixed: [0.3, 1.2, -0.5, 2.1, 0.8, 1.7, -1.1, 2.6],
        rising: [-2, -1, 0, 1, 2, 3, 4, 5],
        falling: [4, 3, 2, 1, 0, -1, -2, -3],
        cliff: [100, 99, 1, 0.5, 0, 0.3, -1, 0.8],
    };
    const values = [1, -1, 2, 0.5, -0.5, 3, 1.5, -2];
    const fields = { scores: [], values: [] };
    let run = null;

    function buildRow() {
        const rows = ['scores', 'values'].map((name) => {
            const row = make('tr', null,
                make('th', { scope: 'row' }, name === 'scores' ? 's' : 'v'));
            for (let j = 0; j < values.length; j++) {
                const input = make('input', {
                    type: 'number', step: 'any', required: '',
                    'aria-label': `${name === 'scores' ? 'Score' : 'Value'} of key ${j}`,
                });
                input.addEventListener('input', () => update());
                fields[name].push(input);
                row.append(make('td', null, input));
            }
            return row;
        });
        $('softmax-row').append(make('tbody', null, ...rows));
        values.forEach((value, j) => { fields.values[j].value = value; });
    }

    function fillScores() {
        presets[$('softmax-preset').value].forEach((s, j) => { fields.scores[j].value = s; });
    }

    // Lines of JSON: a tile for each block, then the sums.
    function ask(name, scores, weights, block) {
        return library.ask(name, scores, weights, scores.length, block).trim().split('\n')
            .map((line) => JSON.parse(line));
    }

    function update(keep) {
        const read = (all) => all.map((field) => (field.value.trim() === '' ? NaN
            : Number(field.value)));
        const scores = read(fields.scores), weights = read(fields.values);
        if (![...scores, ...weights].every((x) => Number.isFinite(x) && Math.abs(x) <= 1e4)) {
            $('softmax-words').textContent =
                'Scores and values must be numbers from −10000 to 10000.';
            return;
        }
        const block = Number($('softmax-block').value), flawed = $('softmax-flaw').checked;
        const steps = ask(flawed ? 'page_softmax_flawed' : 'page_softmax', scores, weights, block);
        const exact = ask('page_softmax', scores, weights, scores.length);
        run = { scores, block, flawed, steps, exact: exact[exact.length - 1] };
        stepper.reset(steps.length, keep ? stepper.at : 0);
    }

    function drawRow(tile, last) {
        const width = 640, height = 190, low = Math.min(0, ...run.scores),
            high = Math.max(1, ...run.scores), step = (width - 40) / run.scores.length;
        const y = (s) => 24 + (height - 48) * (high - s) / (high - low);
        const picture = clearPicture('softmax-picture', width, height);
        run.scores.forEach((s, j) => {
            const now = !last && j >= tile.key && j < tile.key + tile.keys;
            const done = last || j < tile.key;
            picture.append(make('rect', {
                x: 34 + j * step, width: step - 8, y: Math.min(y(s), y(0)),
                height: Math.max(2, Math.abs(y(s) - y(0))), rx: 3,
                fill: colour(now ? 'accent' : 'partial'), opacity: now ? 1 : done ? 0.75 : 0.2,
            }), make('text', {
                x: 34 + j * step + (step - 8) / 2, y: height - 4, 'text-anchor': 'middle',
            }, `key ${j}`));
        });
        picture.append(make('line', {
            x1: 30, x2: width, y1: y(0), y2: y(0), stroke: colour('line'),
        }));
        const m = last ? run.steps[stepper.count - 2].maximum[0][0] : tile.maximum[0][0];
        if (m !== null) {
            picture.append(make('line', {
                x1: 30, x2: width, y1: y(m), y2: y(m), stroke: colour('bad'), 'stroke-width': 2,
                'stroke-dasharray': '5 4',
            }), make('text', { x: 6, y: y(m) + 4 }, 'm'));
        }
    }

    function card(name, value, wrong) {
        return make('div', null, make('span', null, name),
            make('b', { class: wrong ? 'bad' : null }, value));
    }

    function showTile(tile) {
        const before = stepper.at > 0 ? run.steps[stepper.at - 1].maximum[0][0] : null;
        const m = tile.maximum[0][0], alpha = tile.alpha[0][0];
        const large = alpha === null || alpha > 1;
        $('softmax-state').replaceChildren(card('m', decimal(m)),
            card('alpha', decimal(alpha), large),
            card('l', decimal(tile.sum[0][0]), tile.sum[0][0] === null),
            card('O, not divided yet', decimal(tile.o_after[0][0]), tile.o_after[0][0] === null));
        const keys = tile.keys === 1 ? `Key ${tile.key}`
            : `Keys ${tile.key} to ${tile.key + tile.keys - 1}`;
        const words = before === null ? `${keys}: the first block sets m to ${decimal(m)}.`
            : m > before ? `${keys}: m rises from ${decimal(before)} to ${decimal(m)}. What was `
                + `summed so far shrinks by alpha = exp(${decimal(before)} − ${decimal(m)}) = `
                + `${decimal(alpha)}.`
                : m < before ? `${keys}: m falls from ${decimal(before)} to ${decimal(m)}, which `
                    + `no maximum so far can do. So alpha = exp(${decimal(before)} − ${decimal(m)})`
                    + (alpha === null ? ' is beyond the range of f32.'
                        : ` = ${decimal(alpha)} is above 1, and sums grow.`)
                    : `${keys}: the maximum stays, so alpha is 1 and nothing is rescaled.`;
        $('softmax-words').textContent = words;
    }

    function showEnd(sums) {
        const o = sums.o[0][0], exact = run.exact.o[0][0], wrong = o === null;
        $('softmax-state').replaceChildren(card('O / l', decimal(o, 6), wrong),
            card('softmax of the whole row', decimal(exact, 6)),
            card('LSE = m + log l', decimal(sums.lse[0][0], 6), sums.lse[0][0] === null));
        $('softmax-words').textContent = 'The last block is done: O is divided by l once.';
        return wrong;
    }

    function show(at) {
        const last = at === run.steps.length - 1, step = run.steps[at];
        drawRow(step, last);
        last ? showEnd(step) : showTile(step);
        const sums = run.steps[run.steps.length - 1], o = sums.o[0][0], exact = run.exact.o[0][0];
        const wrong = o === null;
        $('softmax-verdict').classList.toggle('wrong', wrong);
        $('softmax-verdict').textContent = wrong
            ? 'With the flaw the result is not a number: alpha overflowed, and ∞ / ∞ is no number. '
                + `The right result is ${decimal(exact, 6)}.`
            : run.flawed ? 'The flaw does not show on these scores: the result is off by '
                + `${decimal(Math.abs(o - exact), 1)} only. Try the cliff.`
                : `The end agrees with the softmax of the whole row, ${decimal(exact, 6)}, to `
                    + `${decimal(Math.abs(o - exact), 1)}.`;
    }

    const stepper = new Stepper('softmax-stepper', 'Online softmax', show);
    buildRow();
    fillScores();
    $('softmax-preset').addEventListener('change', () => { fillScores(); update(); });
    $('softmax-block').addEventListener('change', () => update());
    $('softmax-flaw').addEventListener('change', () => update(true));
    $('softmax-form').addEventListener('submit', (event) => event.preventDefault());
    update();
    return () => stepper.jump(stepper.at);
}
