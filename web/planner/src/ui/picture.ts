import uPlot from 'uplot'
import { type ChartData, colour, plot } from './chart'

const width = 1200
const height = 320
const margin = 24
const head = 60 // for title and legend

/** Draws charts below one another, in the colours of the page, as a PNG file. */
export async function picture(charts: { data: ChartData; shown: boolean[] }[]): Promise<Blob> {
  await document.fonts.ready
  const canvas = document.createElement('canvas')
  const scale = 2
  canvas.width = width * scale
  canvas.height = (charts.length * (height + head + margin) + margin) * scale
  const ctx = canvas.getContext('2d')!
  ctx.scale(scale, scale)
  ctx.fillStyle = colour('--surface')
  ctx.fillRect(0, 0, canvas.width, canvas.height)
  for (const [i, chart] of charts.entries()) {
    await draw(ctx, margin + i * (height + head + margin), chart.data, chart.shown)
  }
  return new Promise((done, failed) =>
    canvas.toBlob((blob) => (blob ? done(blob) : failed(new Error('The browser cannot write PNG files.'))), 'image/png'),
  )
}

async function draw(ctx: CanvasRenderingContext2D, top: number, data: ChartData, shown: boolean[]): Promise<void> {
  ctx.textBaseline = 'alphabetic'
  ctx.fillStyle = colour('--text')
  ctx.font = '600 16px Inter, sans-serif'
  ctx.fillText(data.title, margin, top + 16)
  ctx.fillStyle = colour('--muted')
  ctx.font = '13px Inter, sans-serif'
  ctx.textAlign = 'right'
  ctx.fillText(data.unit, width - margin, top + 16)
  ctx.textAlign = 'left'
  let x = margin
  for (const entry of data.series.filter((_, i) => shown[i])) {
    ctx.strokeStyle = colour(entry.colour)
    ctx.lineWidth = data.stacked ? 10 : 2.5
    ctx.setLineDash(entry.dash ?? [])
    ctx.beginPath()
    ctx.moveTo(x, top + 38)
    ctx.lineTo(x + 24, top + 38)
    ctx.stroke()
    ctx.fillStyle = colour('--text')
    ctx.fillText(entry.label, x + 32, top + 42)
    x += 32 + ctx.measureText(entry.label).width + 24
  }
  ctx.setLineDash([])
  const [options, values] = plot(data, { width: width - 2 * margin, height }, shown)
  const chart = new uPlot(options, values, document.createElement('div'))
  await new Promise(requestAnimationFrame) // uPlot draws in a microtask
  ctx.drawImage(chart.ctx.canvas, margin, top + head, width - 2 * margin, height)
  chart.destroy()
}
