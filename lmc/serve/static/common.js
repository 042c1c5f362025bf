'use strict';
const $ = id => document.getElementById(id);
const make = (kind, text = '', name = '') => { const made = document.createElement(kind); made.textContent = text; if (name) made.className = name; return made };
const said = text => { $('said').textContent = text };
const spell = n => n >= 1e6 ? (n / 1e6).toFixed(1) + ' M' : n >= 1e4 ? (n / 1e3).toFixed(1) + ' k' : n >= 100 || Number.isInteger(n) ? n.toFixed(0) : n.toPrecision(2);
const duration = s => !Number.isFinite(s) ? '–' : s >= 1 ? s.toFixed(2) + ' s' : s >= .001 ? (s * 1e3).toPrecision(3) + ' ms' : (s * 1e6).toFixed(0) + ' µs';

async function fetched(path, how = {}) {
  const answer = await fetch(path, how);
  if (answer.ok) return answer;
  const found = await answer.json().catch(() => ({}));
  throw new Error(found.error ? found.error.message : 'status ' + answer.status);
}

async function ask(path, body) {
  const how = body === undefined ? {} : {method: 'POST', headers: {'Content-Type': 'application/json'}, body: JSON.stringify(body)};
  return (await fetched(path, how)).json();
}
