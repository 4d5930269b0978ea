import { useEffect, useId, useRef, useState } from 'preact/hooks'
import uPlot from 'uplot'
import 'uplot/dist/uPlot.min.css'
import { clock, number, tick } from './format'
import { onThemeChange } from './theme'

/** One line, or one area of a stack. */
export interface Series {
  label: string
  values: number[]
  /** A custom property of style.css, such as --used. */
  colour: string
  /** Tells lines apart without colours. */
  dash?: number[]
}

export interface ChartData {
  title: string
  unit: string
  /** Seconds since the start. A value holds until the next time. */
  times: number[]
  series: Series[]
  stacked?: boolean
  marks?: Mark[]
  /** The highest value of the scale, to compare charts side by side. */
  top?: number
}

/** When a limit was reached. */
export interface Mark {
  seconds: number
  label: string
}

const height = 200
const incrs = [1, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800]

/** The colour in a custom property, which depends on the theme. */
export function colour(name: string): string {
  const probe = document.body.appendChild(document.createElement('i'))
  probe.style.color = `var(${name})`
  const value = getComputedStyle(probe).color
  probe.remove()
  return value
}

/** The options and values of uPlot. Stacked series are drawn from the top, each above the sum of the ones after it. */
export function plot(data: ChartData, size: { width: number; height: number }, shown: boolean[]): [uPlot.Options, uPlot.AlignedData] {
  const sums = data.series.map((series) => series.values)
  for (let i = sums.length - 1, under = data.times.map(() => 0); data.stacked && i >= 0; i--) {
    under = sums[i] = under.map((sum, t) => sum + (shown[i] ? data.series[i]!.values[t]! : 0))
  }
  const axis = { stroke: () => colour('--muted'), grid: { stroke: () => colour('--grid'), width: 1 }, ticks: { show: false }, font: '12px Inter, sans-serif' }
  const options: uPlot.Options = {
    ...size,
    padding: [8, 24, 0, 0],
    legend: { show: false },
    cursor: { sync: { key: 'planner' }, drag: { x: false, y: false }, points: { show: !data.stacked } },
    scales: {
      x: { time: false },
      y: { range: (_, __, max) => [0, Math.max(data.top ?? max, 1) * 1.05] },
    },
    axes: [
      { ...axis, incrs, space: 80, size: 28, values: (_, splits, __, ___, apart) => splits.map((s) => tick(s, apart)) },
      { ...axis, size: 46, incrs: [1, 2, 5, 10, 20, 25, 50, 100, 200, 250, 500, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5, 1e6], values: (_, splits) => splits.map((s) => number(s)) },
    ],
    hooks: { draw: [(u) => drawMarks(u, data.marks ?? [])] },
    series: [
      {},
      ...data.series.map(
        (series, i): uPlot.Series => ({
          label: series.label,
          show: shown[i] ?? true,
          stroke: () => colour(series.colour),
          fill: data.stacked ? () => colour(series.colour) : undefined,
          width: data.stacked ? 0 : 2,
          dash: series.dash,
          points: { show: false },
          paths: uPlot.paths.stepped!({ align: 1 }),
        }),
      ),
    ],
  }
  return [options, [data.times, ...sums]]
}

/** Draws a triangle and a line where a limit was reached. */
function drawMarks(u: uPlot, marks: Mark[]): void {
  const { ctx, bbox } = u
  const ratio = devicePixelRatio
  ctx.save()
  ctx.strokeStyle = ctx.fillStyle = colour('--limit')
  ctx.lineWidth = ratio
  for (const { seconds } of marks) {
    const x = u.valToPos(seconds, 'x', true)
    ctx.beginPath()
    ctx.moveTo(x, bbox.top)
    ctx.lineTo(x, bbox.top + bbox.height)
    ctx.stroke()
    ctx.beginPath()
    ctx.moveTo(x - 5 * ratio, bbox.top - 6 * ratio)
    ctx.lineTo(x + 5 * ratio, bbox.top - 6 * ratio)
    ctx.lineTo(x, bbox.top + 3 * ratio)
    ctx.fill()
  }
  ctx.restore()
}

interface ChartProps {
  data: ChartData
  /** What the chart is about, beside its title. */
  context: string
  heading: 'h3' | 'h4'
  shown: boolean[]
  show: (shown: boolean[]) => void
}

/** A chart with a legend, the values at the pointer, a picture to save and a table with the same values. */
export function Chart({ data, context, heading: Heading, shown, show }: ChartProps) {
  const name = `${context}, ${data.title}`
  const id = useId()
  const target = useRef<HTMLDivElement>(null)
  const [at, setAt] = useState<number | null>(null)

  useEffect(() => {
    const element = target.current!
    const [options, values] = plot(data, { width: Math.max(element.clientWidth, 200), height }, shown)
    options.hooks!.setCursor = [(u) => setAt(u.cursor.idx ?? null)]
    const chart = new uPlot(options, values, element)
    const resized = new ResizeObserver(() => chart.setSize({ width: Math.max(element.clientWidth, 200), height }))
    resized.observe(element)
    const themed = onThemeChange(() => chart.redraw(false))
    void document.fonts.ready.then(() => chart.redraw(false, true))
    return () => {
      themed()
      resized.disconnect()
      chart.destroy()
    }
  }, [data, shown])

  return (
    <figure class="chart" aria-labelledby={`${id}-title`}>
      <figcaption>
        <Heading id={`${id}-title`}>{data.title}</Heading>
        <span class="unit">{at === null ? data.unit : `${data.unit} at ${clock(data.times[at] ?? 0)}`}</span>
      </figcaption>
      <ul class="legend">
        {data.series.map((series, i) => (
          <li key={series.label}>
            <button type="button" class="quiet small" aria-pressed={shown[i]} onClick={() => show(shown.map((v, j) => (i === j ? !v : v)))}>
              <Swatch series={series} area={data.stacked} /> {series.label}
              {at !== null && <b> {number(series.values[at])}</b>}
            </button>
          </li>
        ))}
        {(data.marks ?? []).length > 0 && <li class="limit">▼ limit reached</li>}
      </ul>
      <div ref={target} class="plot" role="img" aria-label={`Chart of ${name}. The table below has the same values.`} />
      <Values data={data} name={name} />
    </figure>
  )
}

function Swatch({ series, area }: { series: Series; area?: boolean }) {
  return (
    <svg class="swatch" width="20" height="10" aria-hidden="true" focusable="false">
      {area ? (
        <rect width="20" height="10" rx="2" style={{ fill: `var(${series.colour})` }} />
      ) : (
        <line x1="0" x2="20" y1="5" y2="5" stroke-width="2.5" stroke-dasharray={series.dash?.join(' ')} style={{ stroke: `var(${series.colour})` }} />
      )}
    </svg>
  )
}

/** The table with the values of a chart. It is built when somebody opens it: it may have hundreds of rows. */
function Values({ data, name }: { data: ChartData; name: string }) {
  const [open, setOpen] = useState(false)
  return (
    <details onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>Table<span class="hidden"> of {name}</span></summary>
      {open && (
        <div class="scroll" tabIndex={0} role="region" aria-label={`Values of ${name}`}>
          <table>
            <caption class="hidden">
              {name}, {data.unit}
            </caption>
            <thead>
              <tr>
                <th scope="col">Time</th>
                {data.series.map((series) => (
                  <th scope="col" key={series.label}>
                    {series.label}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {data.times.map((time, t) => (
                <tr key={time}>
                  <th scope="row">{clock(time)}</th>
                  {data.series.map((series) => (
                    <td key={series.label}>{number(series.values[t])}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  )
}
