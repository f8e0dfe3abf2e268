// draw.js: small helpers for elements, pictures and numbers.
'use strict';

const $ = (id) => document.getElementById(id);

// make('td', {class: 'now'}, 'text', child ...)
function make(tag, attributes, ...children) {
    const svg = ['svg', 'g', 'rect', 'line', 'path', 'circle', 'text', 'polyline'].includes(tag);
    const element = svg ? document.createElementNS('http://www.w3.org/2000/svg', tag)
        : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) {
        if (value !== null && value !== false) {
            element.setAttribute(name, value);
        }
    }
    element.append(...children);
    return element;
}

// An empty picture of this size, in its own units.
function clearPicture(id, width, height) {
    const picture = $(id);
    picture.setAttribute('viewBox', `0 0 ${width} ${height}`);
    picture.replaceChildren();
    return picture;
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue('--' + name);

// Four decimals; null in JSON stands for a number that is not finite.
function decimal(x, digits = 4) {
    if (x === null || Number.isNaN(x)) {
        return 'not finite';
    }
    const size = Math.abs(x);
    return size !== 0 && (size >= 1e5 || size < 1e-4) ? x.toExponential(2)
        : x.toFixed(digits).replace('-', '−');
}

const whole = (x) => Math.round(x).toLocaleString('en-US');

function bytes(x) {
    const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
    let at = 0;
    for (; x >= 1024 && at < units.length - 1; at++) {
        x /= 1024;
    }
    return (at === 0 || x >= 100 ? x.toFixed(0) : x.toPrecision(3)) + ' ' + units[at];
}

function metric(x, unit) {
    const names = ['', 'k', 'M', 'G', 'T', 'P', 'E'];
    let at = 0;
    for (; x >= 1000 && at < names.length - 1; at++) {
        x /= 1000;
    }
    const digits = at === 0 && Number.isInteger(x) ? String(x) : x.toPrecision(3);
    return `${digits} ${names[at]}${unit}`;
}

function facts(id, pairs) {
    $(id).replaceChildren(...pairs.flatMap(([name, value]) =>
        [make('dt', null, name), make('dd', null, value)]));
}

// The value of a field as a whole number, or null and a mark on it if it is none or beyond its
// bounds. An empty field gives `absent`.
function wholeOf(id, absent) {
    const field = $(id), value = Number(field.value);
    const empty = field.value.trim() === '' && !field.validity.badInput;
    const good = empty ? absent !== undefined
        : Number.isInteger(value) && value >= Number(field.min) && value <= Number(field.max);
    field.toggleAttribute('aria-invalid', false);
    if (!good) {
        field.setAttribute('aria-invalid', 'true');
        return null;
    }
    return empty ? absent : value;
}

const beyond = (id) => `${$(id).labels[0].firstChild.textContent.trim()} must be a whole number `
    + `from ${$(id).min} to ${$(id).max}.`;

// Reads fields {name: id or [id, absent]}; returns the numbers, or null after naming the fault.
function readFields(fields, words) {
    const values = {};
    for (const [name, given] of Object.entries(fields)) {
        const [id, absent] = Array.isArray(given) ? given : [given, undefined];
        values[name] = wholeOf(id, absent);
        if (values[name] === null) {
            $(words).textContent = beyond(id);
            return null;
        }
    }
    return values;
}
