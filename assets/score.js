/* The score of the race: the measured speedup with how often and where it was measured, and a table of all lanes' numbers. */

/* Measured pairs stand for the settings that they were measured at, and for no others. */
Lantern.pairsOf = (run, lane) => (run.pairs || []).find(pairs => pairs.key === lane.key);
Lantern.speedup = (run, lane) => (Lantern.pairsOf(run, lane) ? Lantern.pairsOf(run, lane).median : lane.speedup).toFixed(2);

/* `part` finds the score's elements. Returns what writes them from a run whose `state` is the one on view. */
Lantern.score = part => {
  const ROWS = [
    ['Seconds', s => s.seconds.toFixed(2)],
    ['Target passes', s => s.target_passes],
    ['Accepted length', s => s.accepted_length.toFixed(2)],
    ['Step compression', s => s.step_compression.toFixed(2)],
    ['Prompt, seconds', s => s.prompt_seconds.toFixed(2)],
    ['Pixels, seconds', s => s.pixel_seconds.toFixed(2)],
    ['Only by pooling', s => s.relaxed_only],
  ];
  const table = run => {
    const heads = run.lanes.map((lane, i) => {
      const head = Lantern.make('th', 'num', i ? lane.name : 'AR');
      if (i) head.style.color = `var(${Lantern.methods[lane.method].color})`;
      return head;
    });
    Lantern.fill(part('methods'), Lantern.make('th'), ...heads);
    const visible = !['stale', 'loading', 'empty', 'failed'].includes(run.state);
    const gain = Lantern.make('tr');                              // of two methods each has its own, only one stands large
    gain.append(Lantern.make('td', '', 'Speedup'), ...run.lanes.map(lane =>
      Lantern.make('td', 'num', visible && lane.speedup ? `${Lantern.speedup(run, lane)}×` : '–')));
    Lantern.fill(part('stats'), ...(run.lanes.length > 2 ? [gain] : []), ...ROWS.map(([label, read], i) => {
      const row = Lantern.make('tr', i > 3 ? 'sub' : '');
      row.append(Lantern.make('td', '', label));
      run.lanes.forEach(lane => {
        const partial = i === 1 && lane.counts.length ? lane.counts.length : '–';
        row.append(Lantern.make('td', 'num', !visible ? '–' : lane.summary ? read(lane.summary) : partial));
      });
      return row;
    }));
  };
  return run => {
    const [base, lane] = run.lanes, pairs = Lantern.pairsOf(run, lane), now = run.state, hero = part('hero');
    const running = run.lanes.find(each => each.state === 'running');
    const measured = now === 'done' && lane.speedup;
    hero.classList.toggle('wait', !measured);
    Lantern.fill(hero, measured ? Lantern.speedup(run, lane)
      : now === 'running' && running ? `${(running.ends.at(-1) || 0).toFixed(2)} s` : '–', measured ? Lantern.make('span', '', '×') : '');
    const whose = run.lanes.length > 2 ? ` of ${lane.name}` : '';
    Lantern.say(part('hero-cap'), measured ? `Measured speedup${whose}${(pairs || run).recorded ? ', recorded run' : ''}`
      : { loading: 'Loading the model', stopped: 'Stopped, so nothing was measured', failed: 'Nothing was measured' }[now]
      || (now === 'running' ? (running ? `${running.name} so far` : 'Waiting') : 'Speedup'));
    const where = (pairs || lane).facts || [], facts = [];
    if (measured) {
      facts.push(pairs ? 'median of ' : base.kept ? '' : 'one pair, ', Lantern.make('b', '', `n = ${pairs ? pairs.n : 1}`),
        pairs ? ` pairs, quartiles ${pairs.low.toFixed(2)} to ${pairs.high.toFixed(2)}`
          : base.kept ? ', baseline kept from an earlier run' : '', document.createElement('br'),
        Lantern.make('b', '', where[0] || ''), where[1] ? `, ${where[1]}` : '');
    }
    Lantern.fill(part('facts'), ...facts);
    part('measure').style.visibility = measured ? '' : 'hidden';   // keeps its place: nothing below may jump
    Lantern.say(part('measure'), run.measuring ? `Measuring: ${run.measuring.done} of ${run.measuring.total} runs`
      : pairs ? 'Measure 5 pairs again' : 'Measure 5 pairs');
    part('measure').disabled = !!run.measuring;
    const others = measured && run.pairs && !pairs ? `Measured at other settings: ${run.pairs[0].median.toFixed(2)}×.` : '';
    const rest = ['done', 'stopped', 'failed'].includes(now) && !run.measuring;
    Lantern.say(part('price'), rest ? [others, run.hint || (measured ? run.note : '')].filter(Boolean).join(' ') : '');
    table(run);
  };
};
