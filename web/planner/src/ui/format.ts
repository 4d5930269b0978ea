/** A time of the simulation, in seconds since its start, as the axes and tables show it. */
export function clock(seconds: number): string {
  const whole = Math.round(seconds)
  const two = (n: number) => String(n).padStart(2, '0')
  const days = Math.floor(whole / 86400)
  const text = `${two(Math.floor(whole / 3600) % 24)}:${two(Math.floor(whole / 60) % 60)}:${two(whole % 60)}`
  return days > 0 ? `${days}d ${text}` : text
}

const numbers = new Intl.NumberFormat('en-US', { maximumFractionDigits: 3 })

/** A number as people read it: 12,345.5. */
export function number(value: number | null | undefined): string {
  return value === null || value === undefined ? '–' : numbers.format(value)
}

/** A file name from a title. */
export function fileName(...parts: string[]): string {
  return parts
    .join('-')
    .toLowerCase()
    .replace(/[^a-z0-9]+/g, '-')
    .replace(/^-+|-+$/g, '')
}

/** Saves a file on the person's machine. */
export function download(name: string, content: Blob): void {
  const link = document.createElement('a')
  link.href = URL.createObjectURL(content)
  link.download = name
  link.click()
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000)
}
