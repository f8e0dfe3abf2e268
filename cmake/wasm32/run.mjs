// run.mjs PROGRAM.wasm ARGUMENT...: runs a program of the preset wasm under Node, with the current
// folder as its root. Node 20 needs --single-threaded: its threads that compile abort now and then.
import { readFileSync } from 'node:fs';
import { WASI } from 'node:wasi';

const args = process.argv.slice(2);
const wasi = new WASI({
    version: 'preview1', args, env: process.env, preopens: { '/': process.cwd() },
});
const module = new WebAssembly.Module(readFileSync(args[0]));
const instance = new WebAssembly.Instance(module, wasi.getImportObject());
process.exitCode = wasi.start(instance);
