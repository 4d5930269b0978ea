import { parse, stringify } from 'yaml'
import type { Result, Scenario } from './api'

/** Reads a scenario file, YAML or JSON (which is YAML). The server checks what is in it. */
export function read(text: string): Scenario {
  const document: unknown = parse(text, { version: '1.1' })
  if (typeof document !== 'object' || document === null || Array.isArray(document)) {
    throw new Error('expected a scenario with subnets and nodes')
  }
  const scenario = document as Scenario
  return { ...scenario, subnets: scenario.subnets ?? [], nodes: scenario.nodes ?? [] }
}

export const yaml = (scenario: Scenario) => stringify(scenario, { version: '1.1', lineWidth: 0 })

export const json = (scenario: Scenario) => `${JSON.stringify(scenario, null, 2)}\n`

/** Quotes a text as Go's encoding/csv does, so that page and command write the same bytes. */
function quoted(text: string): string {
  return text === '\\.' || /^\s|[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text
}

/** The addresses of all subnets over time, in the format of `berthctl plan --csv`. */
export function csv(result: Result): string {
  const rows = ['alternative,seconds,subnet,used,warm,cooling,enis,others,free']
  for (const { name, series } of result.alternatives) {
    series.at.forEach((seconds, t) => {
      for (const subnet of series.subnets) {
        const values = [subnet.used[t], subnet.warm[t], subnet.cooling[t], subnet.enis[t], subnet.others, subnet.free[t]]
        rows.push([quoted(name), seconds, quoted(subnet.name), ...values].join(','))
      }
    })
  }
  return `${rows.join('\n')}\n`
}
