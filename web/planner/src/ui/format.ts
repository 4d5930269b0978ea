/** A time of the simulation as hours, minutes and seconds since its start: 36:05:00. */
export function clock(seconds: number): string {
  const whole = Math.round(seconds)
  const two = (n: number) => String(n).padStart(2, '0')
  return [Math.floor(whole / 3600), Math.floor(whole / 60) % 60, whole % 60].map(two).join(':')
}

/** A time at an axis, whose ticks are that many seconds apart. */
export function tick(seconds: number, apart: number): string {
  return apart >= 60 ? clock(seconds).slice(0, -3) : clock(seconds)
}

const numbers = new Intl.NumberFormat('en-US', { maximumFractionDigits: 3 })

/** A number as people read it: 12,345.5. */
export function number(value: number | null | undefined): string {
  return value === null || value === undefined ? '–' : numbers.format(value)
}

/** A duration of Go without the zeros at its end: 24h0m0s as 24h. */
export function short(duration: string): string {
  return duration.replace(/(?<=[hm])0[ms](0s)?$/, '')
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
