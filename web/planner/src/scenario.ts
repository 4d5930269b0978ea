import type { Scenario } from './api'
import { type FieldError, type Path, entry, get, set } from './ui/fields'

/** The scenario of "New": the least that can be simulated. */
export const blank: Scenario = {
  name: 'my-cluster',
  duration: '24h',
  subnets: [{ name: 'a', cidr: '10.0.0.0/24' }],
  nodes: [{ name: 'workers', instanceType: 'm5.large', count: 3, subnets: ['a'] }],
  settings: { mode: 'node' },
  workload: { deployments: [{ name: 'web', replicas: 10 }] },
}

/** Changes a field. A subnet or node group that gets another name keeps it wherever the scenario refers to it. */
export function change(scenario: Scenario, path: Path, value: unknown): Scenario {
  const old = get(scenario, path)
  const next = set(scenario, path, value)
  if (typeof old !== 'string' || typeof value !== 'string') return next
  if (/^subnets\[\d+\]\.name$/.test(path)) return renameSubnet(next, old, value)
  if (/^nodes\[\d+\]\.name$/.test(path)) return renameGroup(next, old, value)
  return next
}

function renameSubnet(scenario: Scenario, old: string, name: string): Scenario {
  const list = (names: string[]) => names.map((each) => (each === old ? name : each))
  const settings = (of: Scenario['settings']) =>
    of?.eni && Array.isArray(of.eni.subnetIDs) ? { ...of, eni: { ...of.eni, subnetIDs: list(of.eni.subnetIDs as string[]) } } : of
  return {
    ...scenario,
    nodes: scenario.nodes.map((group) => ({ ...group, subnets: list(group.subnets ?? []) })),
    ...(scenario.settings && { settings: settings(scenario.settings) }),
    ...(scenario.alternatives && {
      alternatives: scenario.alternatives.map((each) => ({
        ...each,
        ...(each.settings && { settings: settings(each.settings) }),
        ...(each.cidrs && { cidrs: renameKey(each.cidrs, old, name) }),
      })),
    }),
  }
}

function renameGroup(scenario: Scenario, old: string, name: string): Scenario {
  if (!scenario.alternatives) return scenario
  return {
    ...scenario,
    alternatives: scenario.alternatives.map((each) => ({
      ...each,
      ...(each.instanceTypes && { instanceTypes: renameKey(each.instanceTypes, old, name) }),
      ...(each.counts && { counts: renameKey(each.counts, old, name) }),
    })),
  }
}

function renameKey<V>(map: Record<string, V>, old: string, name: string): Record<string, V> {
  return Object.fromEntries(Object.entries(map).map(([key, value]) => [key === old ? name : key, value]))
}

/** A name that no entry of the list has: web, web-2, web-3. */
export function freeName(base: string, taken: (string | undefined)[]): string {
  for (let n = 1; ; n++) {
    const name = n === 1 ? base : `${base}-${n}`
    if (!taken.includes(name)) return name
  }
}

/** The errors of the server, at the fields that a person can change: an alternative changes node groups and subnets by name. */
export function located(errors: FieldError[], scenario: Scenario): FieldError[] {
  const maps: Record<string, string> = { instanceType: 'instanceTypes', count: 'counts', cidr: 'cidrs' }
  return errors.map((error) => {
    const map = /^(alternatives\[\d+\]\.(?:instanceTypes|counts|cidrs))\.(.+)$/.exec(error.path)
    if (map) return { ...error, path: entry(map[1]!, map[2]!) }
    const replaced = /^(alternatives\[\d+\])\.(nodes|subnets)\[(\d+)\]\.(instanceType|count|cidr)$/.exec(error.path)
    if (!replaced) return error
    const [, alternative, list, index, field] = replaced
    const name = scenario[list as 'nodes' | 'subnets'][Number(index)]?.name ?? ''
    const path = entry(`${alternative}.${maps[field!]}`, name)
    return get(scenario, path) === undefined ? error : { ...error, path }
  })
}
