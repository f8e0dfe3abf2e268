// costs.js: part 4, the IO analysis of `attn plan`: roofline and memory.
'use strict';

function startCosts(library) {
    const LENGTHS = Array.from({ length: 8 }, (_, i) => 1024 << i);
    const machines = JSON.parse(library.ask('page_machines'));
    const WIDTH = 460, HEIGHT = 320, LEFT = 58, BOTTOM = 40, TOP = 16, RIGHT = 22;
    const short = (n) => (n >= 1024 ? `${n / 1024}k` : String(n));

    $('costs-machine').append(...machines.map((machine, i) =>
        make('option', { value: i, selected: machine.name === 'h100' ? '' : null },
            machine.model)));
    $('costs-n').append(...LENGTHS.map((n) =>
        make('option', { value: n, selected: n === 8192 ? '' : null }, short(n))));

    // A head of 16-bit numbers.
    function costsOf(n, choice) {
        return JSON.parse(library.ask('page_costs', n, choice.d, 2, choice.causal, choice.rows,
            choice.rows, choice.keys, choice.machine[$('costs-near').value]));
    }

    const total = (traffic) => traffic.read + traffic.written;
    const roofOf = (flops, moved, machine) => JSON.parse(library.ask('page_roof', flops, moved,
        machine.half_gflops * 1e9, machine.read_gbytes * 1e9));

    // ---- axes of powers ----

    function axes(id, x, y) {
        const picture = clearPicture(id, WIDTH, HEIGHT);
        const place = (value, axis, from, to) => from + (to - from)
            * Math.log2(value / axis.low) / Math.log2(axis.high / axis.low);
        const at = {
            picture, x: (value) => place(value, x, LEFT, WIDTH - RIGHT),
            y: (value) => place(value, y, HEIGHT - BOTTOM, TOP),
        };
        x.ticks.forEach((value) => picture.append(
            make('line', { x1: at.x(value), x2: at.x(value), y1: TOP, y2: HEIGHT - BOTTOM,
                stroke: colour('grid') }),
            make('text', { x: at.x(value), y: HEIGHT - BOTTOM + 18, 'text-anchor': 'middle' },
                x.name(value))));
        y.ticks.forEach((value) => picture.append(
            make('line', { x1: LEFT, x2: WIDTH - RIGHT, y1: at.y(value), y2: at.y(value),
                stroke: colour('grid') }),
            make('text', { x: LEFT - 6, y: at.y(value) + 4, 'text-anchor': 'end' },
                y.name(value))));
        picture.append(make('text', {
            x: (LEFT + WIDTH) / 2, y: HEIGHT - 4, 'text-anchor': 'middle',
        }, x.title));
        return at;
    }

    const powers = (low, high, factor) => {
        const ticks = [];
        for (let x = low; x <= high * 1.001; x *= factor) {
            ticks.push(x);
        }
        return ticks;
    };

    function curve(at, points, name, dash) {
        at.picture.append(make('polyline', {
            points: points.map(([x, y]) => `${at.x(x).toFixed(1)},${at.y(y).toFixed(1)}`).join(' '),
            fill: 'none', stroke: colour(name), 'stroke-width': 2.5,
            'stroke-dasharray': dash || 'none',
        }));
    }

    // ---- roofline ----

    function drawRoof(machine, forms) {
        const peak = machine.half_gflops * 1e9, read = machine.read_gbytes * 1e9;
        const low = 10 ** Math.floor(Math.log10(peak)) / 1000;
        const at = axes('costs-roof', {
            low: 1, high: 8192, ticks: powers(1, 8192, 8), name: String, title: 'FLOP per byte',
        }, {
            low, high: peak * 1.6, ticks: powers(low, peak, 10),
            name: (x) => metric(Math.round(x), ''),
        });
        curve(at, [[Math.max(1, low / read), Math.max(read, low)], [peak / read, peak],
            [8192, peak]], 'soft');
        forms.forEach(({ name, roof, look, side }) => {
            const x = at.x(Math.min(8192, Math.max(1, roof.intensity)));
            const y = at.y(Math.max(roof.rate, low));
            at.picture.append(make('circle', { cx: x, cy: y, r: 6, fill: colour(look) }),
                make('text', { x: x + side * 10, y: y + 20,
                    'text-anchor': side < 0 ? 'end' : 'start' }, name));
        });
        $('costs-roof').setAttribute('aria-label', `Roofline of the ${machine.model}: `
            + forms.map(({ name, roof }) => `${name} ${roof.intensity.toFixed(0)} FLOP per byte, `
                + metric(roof.rate, 'FLOP/s')).join('; '));
    }

    // ---- memory ----

    const KINDS = [
        ['Standard', 'warm', (m) => m.tensors + m.scores, null],
        ['Kept for backward, P stored', 'warm', (m) => m.tensors + m.probabilities, '7 4'],
        ['Tiled', 'accent', (m) => m.tensors, null],
        ['Kept for backward, P computed again', 'ink', (m) => m.tensors + m.statistics, '4 8'],
    ];

    function drawMemory(choice, all) {
        const largest = Math.max(...all.map((c) => KINDS[0][2](c.memory))) * choice.heads;
        const smallest = all[0].memory.tensors * choice.heads;
        const low = 2 ** (Math.floor(Math.log2(smallest) / 5) * 5);
        const at = axes('costs-memory', {
            low: LENGTHS[0], high: LENGTHS[7], ticks: LENGTHS, name: short, title: 'n',
        }, { low, high: largest * 2, ticks: powers(low, largest * 2, 32), name: bytes });
        KINDS.forEach(([name, look, of, dash], i) => {
            const points = all.map((c, k) => [LENGTHS[k], of(c.memory) * choice.heads]);
            curve(at, points, look, dash);
            at.picture.append(
                make('line', { x1: LEFT + 10, x2: LEFT + 40, y1: TOP + 10 + 18 * i,
                    y2: TOP + 10 + 18 * i, stroke: colour(look), 'stroke-width': 2.5,
                    'stroke-dasharray': dash || 'none' }),
                make('text', { x: LEFT + 48, y: TOP + 14 + 18 * i }, name));
        });
    }

    // ---- tables ----

    function tables(choice, all) {
        const heads = ['n', 'traffic, standard', 'traffic, tiled', ...KINDS.map(([name]) => name)];
        const rows = all.map((c, i) => [short(LENGTHS[i]), bytes(total(c.standard) * choice.heads),
            bytes(total(c.tiled) * choice.heads),
            ...KINDS.map(([, , of]) => bytes(of(c.memory) * choice.heads))]);
        $('costs-tables').replaceChildren(make('table', { class: 'results' },
            make('caption', null, 'Traffic of one pass, and memory, all heads'),
            make('thead', null, make('tr', null,
                ...heads.map((head) => make('th', { scope: 'col' }, head)))),
            make('tbody', null, ...rows.map((row) => make('tr', null,
                make('th', { scope: 'row' }, row[0]),
                ...row.slice(1).map((text) => make('td', null, text)))))));
    }

    function update() {
        const fields = readFields({ heads: 'costs-heads', rows: 'costs-rows', keys: 'costs-keys' },
            'costs-words');
        if (fields === null) {
            return;
        }
        const choice = { ...fields, machine: machines[Number($('costs-machine').value)],
            n: Number($('costs-n').value), d: Number($('costs-d').value),
            causal: $('costs-causal').checked ? 1 : 0 };
        const all = LENGTHS.map((n) => costsOf(n, choice));
        const costs = all[LENGTHS.indexOf(choice.n)];
        const standard = roofOf(costs.flops, total(costs.standard), choice.machine);
        const tiled = roofOf(costs.flops, total(costs.tiled), choice.machine);
        drawRoof(choice.machine, [
            { name: 'standard', roof: standard, look: 'warm', side: 1 },
            { name: 'tiled', roof: tiled, look: 'accent', side: -1 }]);
        drawMemory(choice, all);
        tables(choice, all);
        const bound = (roof) => (roof.memory_bound ? 'waits for memory' : 'is bound by arithmetic');
        $('costs-words').textContent = `At n = ${short(choice.n)} standard attention moves `
            + `${bytes(total(costs.standard) * choice.heads)}, `
            + `${(total(costs.standard) / total(costs.tiled)).toFixed(1)} times as much as tiled `
            + `attention, ${bytes(total(costs.tiled) * choice.heads)}. On the `
            + `${choice.machine.model} standard attention ${bound(standard)}, tiled attention `
            + `${bound(tiled)}.`;
    }

    $('costs-form').addEventListener('submit', (event) => event.preventDefault());
    $('costs-form').addEventListener('change', update);
    update();
    return update;
}
