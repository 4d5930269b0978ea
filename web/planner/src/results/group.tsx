import type { ComponentChildren } from 'preact'
import { useMemo, useState } from 'preact/hooks'
import { Chart, type ChartData } from '../ui/chart'
import { download } from '../ui/format'
import { Icon } from '../ui/icons'
import { picture } from '../ui/picture'

/** Charts side by side, with the same series or the same alternatives. */
export interface Group {
  title: string
  charts: ChartData[]
  /** Labels of series that are hidden at first. */
  hidden?: string[]
}

/** Charts of a group show the same series, on the same scale if they are stacked. */
export function ChartGroup({ group, file, heading: Heading = 'h3', children }: { group: Group; file: string; heading?: 'h2' | 'h3'; children?: ComponentChildren }) {
  const [hidden, setHidden] = useState(group.hidden ?? [])
  const charts = useMemo(() => {
    const top = Math.max(...group.charts.map((data) => highest(data, hidden)))
    return group.charts.map((data) => ({ data: data.stacked ? { ...data, top } : data, shown: data.series.map((series) => !hidden.includes(series.label)) }))
  }, [group, hidden])
  return (
    <section>
      <div class="heading">
        <Heading>{group.title}</Heading>
        <div class="tools">
          <button type="button" class="small" onClick={() => void picture(charts).then((blob) => download(`${file}.png`, blob))}>
            <Icon name="save" /> PNG<span class="hidden"> of {group.title}</span>
          </button>
        </div>
      </div>
      {children}
      <div class="charts">
        {charts.map(({ data, shown }) => (
          <Chart
            key={data.title}
            data={data}
            shown={shown}
            context={group.title}
            heading={Heading === 'h2' ? 'h3' : 'h4'}
            show={(next) => setHidden([...hidden.filter((label) => !data.series.some((series) => series.label === label)), ...data.series.filter((_, i) => !next[i]).map((series) => series.label)])}
          />
        ))}
      </div>
    </section>
  )
}

/** The highest value of a stack. */
function highest(data: ChartData, hidden: string[]): number {
  const shown = data.series.filter((series) => !hidden.includes(series.label))
  return Math.max(0, ...data.times.map((_, t) => shown.reduce((sum, series) => sum + (series.values[t] ?? 0), 0)))
}
