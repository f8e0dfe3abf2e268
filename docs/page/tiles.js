// tiles.js: part 3, tiles of any size over a problem, as the library's geometry sees them.
'use strict';

function startTiles(library) {
    const NEAR = 1 << 20; // bytes of the near memory that traffic is counted for
    let grid = null, at = { row: 0, key: 0 };

    function read() {
        return readFields({
            nq: 'tiles-nq', nk: 'tiles-nk', rows: 'tiles-rows', keys: 'tiles-keys', d: 'tiles-d',
            heads: 'tiles-heads', window: ['tiles-window', -1],
        }, 'tiles-words');
    }

    function line(choice) {
        return `hq=${choice.heads} nq=${choice.nq} nk=${choice.nk} d=${choice.d}`
            + ` dtype=${$('tiles-dtype').value} causal=${$('tiles-causal').checked ? 1 : 0}`
            + (choice.window < 0 ? '' : ` window_left=${choice.window} window_right=-1`)
            + ' threads=1';
    }

    function update() {
        const choice = read();
        if (choice === null) {
            return;
        }
        const answer = JSON.parse(library.ask('page_tiles', line(choice), choice.rows,
            choice.keys, NEAR));
        if (answer.error) {
            $('tiles-words').textContent = answer.error;
            return;
        }
        choice.causal = $('tiles-causal').checked;
        grid = { ...answer, choice };
        grid.rowTiles = Math.ceil(choice.nq / choice.rows);
        grid.keyTiles = Math.ceil(choice.nk / choice.keys);
        at = { row: Math.min(at.row, grid.rowTiles - 1), key: Math.min(at.key, grid.keyTiles - 1) };
        tell();
        show();
    }

    const percent = (x, of) => `${(100 * x / of).toFixed(1)} %`;

    function tell() {
        const { choice, plan } = grid, tiles = grid.full + grid.partial + grid.skipped;
        facts('tiles-facts', [
            ['Tiles of a head', `${whole(tiles)}: ${whole(grid.full)} FULL, ${whole(grid.partial)} `
                + `PARTIAL, ${whole(grid.skipped)} SKIP`],
            ['Entries computed', `${whole(grid.computed)} of ${whole(grid.all)} `
                + `(${percent(grid.computed, grid.all)})`],
            ['Entries avoided', percent(grid.all - grid.computed, grid.all)],
            ['Computed, thrown away', percent(grid.computed - grid.visible,
                Math.max(grid.computed, 1))],
            ['Work, all heads', metric(plan.flops, 'FLOP')],
            ['Matrix of scores', `${bytes(grid.all * choice.heads
                * ($('tiles-dtype').value === 'f64' ? 8 : 4))}, never stored`],
            ['Room for a tile', bytes(grid.room)],
            ['Traffic, all heads', `${bytes(grid.tiled * choice.heads)} by these tiles, `
                + `${bytes(grid.standard * choice.heads)} by standard attention, beside a near `
                + `memory of ${bytes(NEAR)}`],
            ['The library here', `${plan.kernel}: tiles of ${plan.strip} rows and `
                + `${plan.key_block} keys`],
            ['Its workspace', bytes(plan.workspace_bytes)],
        ]);
    }

    const kindOf = (row, key) => {
        const band = grid.bands[row];
        return band === undefined || key < band[0] || key >= band[1] ? 'SKIP'
            : key >= band[2] && key < band[3] ? 'FULL' : 'PARTIAL';
    };

    // Each row of tiles is three runs: SKIP, visited, FULL inside it.
    function paint() {
        const canvas = $('tiles-picture'), pen = canvas.getContext('2d');
        const { choice } = grid, side = canvas.width;
        const scale = side / Math.max(choice.nq, choice.nk);
        const x = (tile) => Math.min(tile * choice.keys, choice.nk) * scale;
        const y = (tile) => Math.min(tile * choice.rows, choice.nq) * scale;
        const wide = choice.keys * scale > 4 && choice.rows * scale > 4, gap = wide ? 1 : 0;
        pen.clearRect(0, 0, side, side);
        const fill = (row, from, to, name) => {
            pen.fillStyle = colour(name);
            const height = Math.max(y(row + 1) - y(row) - gap, 0.5);
            if (!wide) {
                pen.fillRect(x(from), y(row), x(to) - x(from), Math.max(height, 1));
                return;
            }
            for (let tile = from; tile < to; tile++) {
                pen.fillRect(x(tile), y(row), x(tile + 1) - x(tile) - gap, height);
            }
        };
        grid.bands.forEach((band, row) => {
            fill(row, 0, grid.keyTiles, 'skipped');
            fill(row, band[0], band[1], 'partial');
            fill(row, band[2], band[3], 'full');
        });
        pen.strokeStyle = colour('ink');
        pen.lineWidth = 3;
        pen.strokeRect(x(at.key) + 1, y(at.row) + 1, Math.max(x(at.key + 1) - x(at.key) - 3, 4),
            Math.max(y(at.row + 1) - y(at.row) - 3, 4));
    }

    const area = (row, key) => (Math.min(row + grid.choice.rows, grid.choice.nq) - row)
        * (Math.min(key + grid.choice.keys, grid.choice.nk) - key);

    // Entries of a tile that the mask shows, row by row.
    function visibleIn(row, key) {
        const { choice } = grid, diagonal = choice.nk - choice.nq;
        const end = Math.min(key + choice.keys, choice.nk);
        let sum = 0;
        for (let i = row; i < Math.min(row + choice.rows, choice.nq); i++) {
            const first = choice.window < 0 ? key : Math.max(key, i + diagonal - choice.window);
            const past = choice.causal ? Math.min(end, i + diagonal + 1) : end;
            sum += Math.max(0, past - first);
        }
        return sum;
    }

    function show() {
        const { choice } = grid;
        paint();
        const row = at.row * choice.rows, key = at.key * choice.keys;
        const lastRow = Math.min(row + choice.rows, choice.nq) - 1;
        const lastKey = Math.min(key + choice.keys, choice.nk) - 1;
        const entries = `${whole(visibleIn(row, key))} of ${whole(area(row, key))} entries`;
        $('tiles-words').textContent = `Rows ${row} to ${lastRow}, keys ${key} to ${lastKey}: `
            + `${kindOf(at.row, at.key)}, ${entries} visible.`;
    }

    function move(row, key) {
        at = {
            row: Math.max(0, Math.min(grid.rowTiles - 1, row)),
            key: Math.max(0, Math.min(grid.keyTiles - 1, key)),
        };
        show();
    }

    const picture = $('tiles-picture');
    picture.addEventListener('pointermove', (event) => {
        const box = picture.getBoundingClientRect(), { choice } = grid;
        const scale = Math.max(choice.nq, choice.nk) / box.width;
        move(Math.floor((event.clientY - box.top) * scale / choice.rows),
            Math.floor((event.clientX - box.left) * scale / choice.keys));
    });
    picture.addEventListener('keydown', (event) => {
        const step = {
            ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1],
        };
        if (step[event.key]) {
            event.preventDefault();
            move(at.row + step[event.key][0], at.key + step[event.key][1]);
        }
    });
    $('tiles-form').addEventListener('submit', (event) => event.preventDefault());
    $('tiles-form').addEventListener('change', update);
    update();
    return show;
}
