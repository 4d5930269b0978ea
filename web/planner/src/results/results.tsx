import { useMemo } from 'preact/hooks'
import type { Outcome, Result } from '../api'
import { csv } from '../files'
import { download, fileName } from '../ui/format'
import { Icon } from '../ui/icons'
import { CallsTable, EventsTable, TotalsTable } from './tables'
import { ChartGroup } from './group'
import { lines, subnets } from './charts'

/** What the simulation found, for all alternatives side by side. */
export function Results({ result, stale }: { result: Result; stale: boolean }) {
  const addresses = useMemo(() => subnets(result), [result])
  const others = useMemo(() => lines(result), [result])
  const name = result.name || 'scenario'
  return (
    <>
      <section class="panel" aria-labelledby="results">
        <div class="heading">
          <h2 id="results" tabIndex={-1}>
            Results of {name}
          </h2>
          {stale && <span class="badge">The scenario has changed since</span>}
          <div class="tools">
            <button type="button" onClick={() => download(`${fileName(name)}.csv`, new Blob([csv(result)], { type: 'text/csv' }))}>
              <Icon name="save" /> CSV<span class="hidden"> of addresses over time</span>
            </button>
          </div>
        </div>
        {result.alternatives.map((outcome) => outcome.stopped && <Stopped key={outcome.name} outcome={outcome} />)}
        <TotalsTable result={result} />
      </section>
      <section class="panel" aria-labelledby="limits">
        <EventsTable result={result} />
      </section>
      {addresses.length > 0 && (
        <section class="panel groups" aria-labelledby="addresses">
          <h2 id="addresses">Addresses by subnet</h2>
          {addresses.map((group) => (
            <ChartGroup key={group.title} group={group} file={fileName(name, group.title)} />
          ))}
        </section>
      )}
      <div class="panel">
        <ChartGroup group={others.group} file={fileName(name, others.group.title)} heading="h2">
          {others.zero.length > 0 && <p class="hint">Always 0: {others.zero.join(', ')}.</p>}
        </ChartGroup>
      </div>
      <section class="panel" aria-labelledby="calls">
        <CallsTable result={result} />
      </section>
    </>
  )
}

function Stopped({ outcome }: { outcome: Outcome }) {
  return (
    <p class="error">
      <Icon name="warning" /> {outcome.name} ended early: {outcome.stopped}
    </p>
  )
}
