const EVERY = 2000, KEPT = 61;  // milliseconds between looks, and looks that are kept: two minutes
const OWN = new Set(['metrics', 'health', 'ready', 'live', 'front page', 'openapi', 'docs', 'page of runs', 'programs with runs']);
const looks = [];
let drawn = null;

function parsed(text) {
  const found = new Map();
  for (const line of text.split('\n')) {
    const hit = /^(\w+)(?:\{(.*)\})? (\S+)/.exec(line);
    if (!hit) continue;
    const labels = Object.fromEntries([...(hit[2] || '').matchAll(/(\w+)="((?:[^"\\]|\\.)*)"/g)].map(([, name, value]) => [name, value.replace(/\\(.)/g, (_, c) => c === 'n' ? '\n' : c)]));
    if (!found.has(hit[1])) found.set(hit[1], []);
    found.get(hit[1]).push({labels, value: Number(hit[3])});
  }
  return found;
}

const rows = (look, name) => look.all.get(name) || [];
const one = (look, name) => { const [row] = rows(look, name); return row ? row.value : undefined };
const sum = (look, name, wanted = () => true) => rows(look, name).reduce((n, row) => wanted(row.labels) ? n + row.value : n, 0);
const theirs = labels => !OWN.has(labels.endpoint);

/* How much a counter grew in the time that is looked at, and how much in a second. */
const grown = (read, from, to) => read(to) - (from ? read(from) : 0);
const rate = (read, from, to) => from && to.at > from.at ? Math.max(0, read(to) - read(from)) / (to.at - from.at) * 1000 : 0;

/* A quantile of a histogram, linear within a bucket as Prometheus has it. */
function quantile(q, name, from, to, wanted = () => true) {
  const read = look => { const by = new Map(); for (const row of rows(look, name + '_bucket')) if (wanted(row.labels)) { const le = Number(row.labels.le.replace('+Inf', 'Infinity')); by.set(le, (by.get(le) || 0) + row.value) } return by };
  const now = read(to), before = from ? read(from) : new Map();
  const buckets = [...now].map(([le, n]) => [le, n - (before.get(le) || 0)]).sort((a, b) => a[0] - b[0]);
  const all = buckets.length ? buckets[buckets.length - 1][1] : 0;
  if (!all) return NaN;
  let low = 0, under = 0;
  for (const [le, n] of buckets) {
    if (n >= q * all) return le === Infinity ? low : low + (le - low) * (n > under ? (q * all - under) / (n - under) : 1);
    low = le; under = n;
  }
  return NaN;
}

function sparkline(values) {
  const svg = document.createElementNS('http://www.w3.org/2000/svg', 'svg'), line = document.createElementNS('http://www.w3.org/2000/svg', 'polyline');
  const most = Math.max(...values, 1e-9);
  svg.setAttribute('viewBox', '0 0 120 28'); svg.setAttribute('preserveAspectRatio', 'none'); svg.setAttribute('aria-hidden', 'true');
  line.setAttribute('points', values.map((v, i) => `${(120 - 120 * (values.length - 1 - i) / (KEPT - 2)).toFixed(1)},${(27 - 25 * v / most).toFixed(1)}`).join(' '));  // the newest on the right
  svg.append(line);
  return svg;
}

function card(id, title, big, small, values, bad = false) {
  const box = make('div', '', 'card');
  box.id = id;
  box.append(make('h2', title), make('div', big, bad ? 'big bad' : 'big'), make('div', small, 'quiet'));
  if (values) box.append(sparkline(values));
  return box;
}

/* Of each two looks that follow each other. */
const over = read => looks.slice(1).map((look, i) => rate(read, looks[i], look));

/* 499: the client left. */
const isRefusal = labels => labels.status >= '400' && labels.status < '499';

function cards(first, now) {
  const requests = look => sum(look, 'lmc_requests_total', theirs), failed = look => sum(look, 'lmc_requests_total', l => theirs(l) && l.status >= '500');
  const within = (what, name, which) => { const most = quantile(.95, name, from, now, which); return Number.isFinite(most) ? `${what}; 95 %: within ${duration(most)}` : what };
  const refused = look => sum(look, 'lmc_requests_total', l => theirs(l) && isRefusal(l));
  const out = look => sum(look, 'lmc_backend_generated_tokens_total'), into = look => sum(look, 'lmc_backend_prompt_tokens_total'), cached = look => sum(look, 'lmc_backend_cached_tokens_total');
  const some = first && grown(into, first, now) > 0 ? first : null, share = grown(into, some, now) ? grown(cached, some, now) / grown(into, some, now) : NaN;
  const from = first && grown(requests, first, now) > 0 ? first : null;  // of nothing new: since the start
  const waiting = one(now, 'lmc_engine_waiting'), held = one(now, 'lmc_engine_held_back');
  const percent = x => Number.isFinite(x) ? (100 * x).toFixed(0) + ' %' : '–';
  return [
    card('requests', 'Requests', spell(Math.max(0, sum(now, 'lmc_requests_in_flight') - 1)) + ' running', `${spell(rate(requests, first, now))} a second, ${spell(requests(now))} so far`, over(requests)),
    card('tokens', 'Tokens a second', spell(rate(out, first, now)), `${spell(rate(into, first, now))} of prompts; ${spell(out(now))} generated so far`, over(out)),
    card('first', 'First token', duration(quantile(.5, 'lmc_first_token_seconds', from, now)), within('of streams', 'lmc_first_token_seconds')),
    card('latency', 'Latency', duration(quantile(.5, 'lmc_request_seconds', from, now, theirs)), within('to the last byte', 'lmc_request_seconds', theirs)),
    card('cache', 'Cache hits', percent(share), 'of prompt tokens', over(cached)),
    card('queue', 'Queue', waiting === undefined ? '–' : spell(waiting) + ' waiting', waiting === undefined ? 'this backend does not say' : `${spell(one(now, 'lmc_engine_running') || 0)} in the batch, ${spell(held || 0)} held back`),
    card('errors', 'Errors', spell(failed(now)), `${spell(refused(now))} request${refused(now) === 1 ? '' : 's'} refused (4xx)`, over(failed), failed(now) > 0),
  ];
}

function table(head, lines) {
  const made = make('table', '', 'small'), top = make('tr');
  for (const [i, name] of head.entries()) { const cell = make('th', name, i ? 'n' : ''); cell.scope = 'col'; top.append(cell) }
  made.append(top);
  for (const line of lines) {
    const row = make('tr');
    for (const [i, text] of line.entries()) row.append(make('td', text, i ? 'n' : ''));
    made.append(row);
  }
  return made;
}

function memory(now) {
  const slots = one(now, 'lmc_engine_slots');
  if (!slots) return [make('p', 'This backend does not say what it holds.', 'quiet')];
  const free = one(now, 'lmc_engine_free_slots') || 0, idle = one(now, 'lmc_engine_evictable_tokens') || 0, busy = Math.max(0, slots - free - idle);
  const bar = make('span', '', 'bar tall'), legend = make('p', '', 'legend');
  for (const [kind, what, n] of [['decode', 'in use', busy], ['shared', 'cached, and may be given up', idle], ['text', 'free', free]]) {
    const part = make('i', '', kind), key = make('span'), swatch = make('b', '', kind);
    part.style.width = 100 * n / slots + '%';
    if (kind !== 'text') bar.append(part);
    key.append(swatch, `${what}: ${spell(n)} tokens`);
    legend.append(key);
  }
  const programs = rows(now, 'lmc_engine_program_tokens').filter(row => row.value > 0).sort((a, b) => b.value - a.value);
  return [bar, legend, programs.length ? table(['program', 'tokens held'], programs.map(row => [row.labels.program, spell(row.value)])) : make('p', 'No run of a program holds memory now.', 'quiet')];
}

function endpoints(first, now) {
  const names = [...new Set(rows(now, 'lmc_requests_total').filter(row => theirs(row.labels)).map(row => row.labels.endpoint))].sort();
  const lines = names.map(name => {
    const own = l => l.endpoint === name;
    return [name, spell(sum(now, 'lmc_requests_total', own)), spell(sum(now, 'lmc_requests_total', l => own(l) && isRefusal(l))), spell(sum(now, 'lmc_requests_total', l => own(l) && l.status >= '500')),
      duration(quantile(.5, 'lmc_request_seconds', null, now, own)), duration(quantile(.95, 'lmc_request_seconds', null, now, own))];
  });
  return lines.length ? [table(['endpoint', 'requests', 'refused', 'errors', 'median', '95 %'], lines)] : [make('p', 'No requests yet.', 'quiet')];
}

function draw() {
  const now = looks[looks.length - 1], first = looks.length > 1 ? looks[0] : null;
  $('cards').replaceChildren(...cards(first, now));
  $('memory').replaceChildren(...memory(now));
  $('endpoints').replaceChildren(...endpoints(first, now));
}

async function look() {
  clearTimeout(drawn);
  try {
    if (!$('about').textContent) {
      const about = await ask('/');
      $('about').textContent = `lmc ${about.version}, models: ${about.models.join(', ')}`;
      $('runs').hidden = !about.pages.includes('/runs');
    }
    looks.push({at: performance.now(), all: parsed(await (await fetched('/metrics')).text())});
    if (looks.length > KEPT) looks.shift();
    draw();
    said('');
  } catch (error) { said(error instanceof TypeError ? 'The server does not answer.' : String(error.message)); }
  if (!document.hidden) drawn = setTimeout(look, EVERY);
}
document.addEventListener('visibilitychange', () => { if (!document.hidden) look() });
look();
