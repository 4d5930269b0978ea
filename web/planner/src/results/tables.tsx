import { useState } from 'preact/hooks'
import type { Event, Outcome, Result, Totals } from '../api'
import { number, short } from '../ui/format'
import { limitName } from './charts'

type Row = [label: string, value: (totals: Totals) => number, better?: 'less' | 'more', unit?: string]

const totals: [group: string, rows: Row[]][] = [
  [
    'Addresses of all subnets',
    [
      ['Held by nodes, at most', (t) => t.peakHeld, 'less'],
      ['Held at the end', (t) => t.endHeld, 'less'],
      ['Idle (warm), at most', (t) => t.peakIdle, 'less'],
      ['Idle, on average', (t) => t.meanIdle, 'less'],
      ['Idle address-hours', (t) => t.idleHours, 'less'],
      ['Free in the fullest subnet, at least', (t) => t.leastFree, 'more'],
      ['ENIs, at most', (t) => t.peakENIs, 'less'],
    ],
  ],
  [
    'EC2 calls',
    [
      ['Calls', (t) => t.calls, 'less'],
      ['Throttled', (t) => t.throttled, 'less'],
      ['Refused for other reasons', (t) => t.refused, 'less'],
    ],
  ],
  [
    'Pods',
    [
      ['Started', (t) => t.pods],
      ['Waited for an address', (t) => t.waited, 'less'],
      ['Wait, median', (t) => t.wait.p50, 'less', ' s'],
      ['Wait, 99th percentile', (t) => t.wait.p99, 'less', ' s'],
      ['Wait, longest', (t) => t.wait.max, 'less', ' s'],
      ['Without an address at the end', (t) => t.waiting, 'less'],
      ['Pending at the end', (t) => t.pending, 'less'],
    ],
  ],
]

/** The totals of all alternatives, with the best value of each row emphasized. */
export function TotalsTable({ result }: { result: Result }) {
  return (
    <div class="scroll tall" tabIndex={0} role="region" aria-label="Table of totals">
      <table class="totals">
        <caption class="hidden">Totals of the alternatives side by side. The best value of each row is marked.</caption>
        <thead>
          <tr>
            <th scope="col">After {short(result.duration)}</th>
            {result.alternatives.map((outcome) => (
              <th scope="col" key={outcome.name}>
                {outcome.name}
              </th>
            ))}
          </tr>
        </thead>
        {totals.map(([group, rows]) => (
          <tbody key={group}>
            <tr class="group">
              <th scope="rowgroup" colSpan={result.alternatives.length + 1}>
                {group}
              </th>
            </tr>
            {rows.map(([label, value, better, unit]) => {
              const values = result.alternatives.map((outcome) => value(outcome.totals))
              const best = better === 'less' ? Math.min(...values) : better === 'more' ? Math.max(...values) : NaN
              const differ = values.some((each) => each !== values[0])
              return (
                <tr key={label}>
                  <th scope="row">{label}</th>
                  {values.map((each, i) => (
                    <td key={i} class={differ && each === best ? 'best' : undefined}>
                      {differ && each === best && <span class="mark">✓<span class="hidden"> best: </span></span>}
                      {number(each)}
                      {unit}
                    </td>
                  ))}
                </tr>
              )
            })}
          </tbody>
        ))}
      </table>
    </div>
  )
}

interface Entry {
  outcome: Outcome
  event: Event
}

/** Which limit each alternative reached when, and on request what happened to the workload. */
export function EventsTable({ result }: { result: Result }) {
  const [all, setAll] = useState(false)
  const entries: Entry[] = result.alternatives.flatMap((outcome) => (outcome.events ?? []).map((event) => ({ outcome, event })))
  const shown = entries.filter(({ event }) => all || limitName(event))
  const free = result.alternatives.filter((outcome) => !(outcome.events ?? []).some(limitName))
  return (
    <>
      <div class="heading">
        <h2 id="limits">Limits reached</h2>
        <div class="tools">
          <label class="check">
            <input type="checkbox" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} /> Also show changes of the workload
          </label>
        </div>
      </div>
      {free.length > 0 && <p class="hint">No pod waited for a limit: {free.map((outcome) => outcome.name).join(', ')}.</p>}
      {shown.length > 0 && (
        <div class="scroll" tabIndex={0} role="region" aria-label="Table of the limits reached">
          <table>
            <caption class="hidden">Events of the alternatives in the order of time</caption>
            <thead>
              <tr>
                <th scope="col">At</th>
                <th scope="col" class="text">
                  Alternative
                </th>
                <th scope="col" class="text">
                  Limit
                </th>
                <th scope="col" class="text">
                  What happened
                </th>
                <th scope="col">Pods</th>
                <th scope="col">Waited for</th>
              </tr>
            </thead>
            <tbody>
              {shown.map(({ outcome, event }, i) => (
                <tr key={i}>
                  <th scope="row">{event.at}</th>
                  <td class="text">{outcome.name}</td>
                  <td class="text">
                    <span class={limitName(event) ? 'badge' : 'badge ok'}>{limitName(event) ?? event.kind}</span>
                  </td>
                  <td class="text wrap">{event.text}</td>
                  <td>{event.pods ? number(event.pods) : ''}</td>
                  <td>{event.for ?? ''}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  )
}

/** The EC2 calls of each alternative by action. */
export function CallsTable({ result }: { result: Result }) {
  const rows = result.alternatives.flatMap((outcome) => (outcome.calls ?? []).map((calls) => ({ outcome, calls })))
  return (
    <>
      <div class="heading">
        <h2 id="calls">EC2 calls by action</h2>
      </div>
      {rows.length === 0 ? (
        <p class="hint">No calls.</p>
      ) : (
        <div class="scroll tall" tabIndex={0} role="region" aria-label="Table of the EC2 calls">
          <table>
            <caption class="hidden">EC2 calls by alternative and action</caption>
            <thead>
              <tr>
                <th scope="col">Action</th>
                <th scope="col" class="text">
                  Alternative
                </th>
                <th scope="col">Calls</th>
                <th scope="col">Throttled</th>
                <th scope="col">Subnet full</th>
                <th scope="col">ENI limit</th>
                <th scope="col">Other errors</th>
              </tr>
            </thead>
            <tbody>
              {rows.map(({ outcome, calls }) => (
                <tr key={`${outcome.name} ${calls.action}`}>
                  <th scope="row">{calls.action}</th>
                  <td class="text">{outcome.name}</td>
                  <td>{number(calls.calls)}</td>
                  <td>{number(calls.throttled)}</td>
                  <td>{number(calls.subnetFull)}</td>
                  <td>{number(calls.eniLimit)}</td>
                  <td>{number(calls.otherErrors)}</td>
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </>
  )
}
