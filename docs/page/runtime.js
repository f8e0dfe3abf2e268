// runtime.js: the library as a module of WebAssembly, and calls of its functions. openModule is
// also the source of the race's worker, so it uses nothing of the page.
'use strict';

// Starts a module. ask(name, ...) gives a text, run(name, ...) a number. Strings and arrays of
// numbers are copied into the module's memory for the time of a call.
async function openModule(bytes) {
    let memory = null;
    const view = () => new DataView(memory.buffer);
    const system = {
        environ_sizes_get: (count, size) => {
            view().setUint32(count, 0, true);
            view().setUint32(size, 0, true);
            return 0;
        },
        environ_get: () => 0,
        fd_prestat_get: () => 8, // no such file
        clock_time_get: (id, precision, at) => {
            view().setBigUint64(at, BigInt(Math.round(performance.now() * 1e6)), true);
            return 0;
        },
        proc_exit: (code) => { throw new Error('the module ended with ' + code); },
    };
    const refuse = () => 52; // no such function
    const imports = {
        wasi_snapshot_preview1: new Proxy(system, { get: (all, name) => all[name] || refuse }),
    };
    const { instance } = await WebAssembly.instantiate(bytes, imports);
    const functions = instance.exports;
    memory = functions.memory;
    functions._initialize();

    function give(value, taken) {
        if (typeof value !== 'string' && !Array.isArray(value)) {
            return value === null ? 0 : Number(value);
        }
        const source = typeof value === 'string' ? new TextEncoder().encode(value + '\0')
            : new Uint8Array(new Float64Array(value).buffer);
        const at = functions.page_room(source.length + 8);
        taken.push(at);
        new Uint8Array(memory.buffer).set(source, at);
        return at;
    }

    function run(name, ...values) {
        const taken = [];
        const result = functions[name](...values.map((value) => give(value, taken)));
        taken.forEach((at) => functions.page_free(at));
        return result;
    }

    function ask(name, ...values) {
        const at = run(name, ...values), all = new Uint8Array(memory.buffer);
        return new TextDecoder().decode(all.subarray(at, all.indexOf(0, at)));
    }

    return { run, ask };
}

function moduleBytes() {
    const text = atob(MODULE_BASE64), bytes = new Uint8Array(text.length);
    for (let i = 0; i < text.length; i++) {
        bytes[i] = text.charCodeAt(i);
    }
    return bytes;
}
