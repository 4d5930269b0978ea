// The requests and replies of the planner's HTTP API: internal/planner/scenario.go and result.go.
// Paths are relative, because the operator serves the page below a prefix.
import type { FieldError } from './ui/fields'
import { short } from './ui/format'

export interface Change {
  at: string
  count: number
}

export interface Subnet {
  name: string
  cidr?: string
  ipv6?: boolean
  used?: number
  zone?: string
}

export interface NodeGroup {
  name: string
  instanceType: string
  count: number
  subnets: string[]
  maxPods?: number
  changes?: Change[]
  replace?: { every: string; nodes?: number }
}

export interface Settings {
  name?: string
  mode?: 'node' | 'operator'
  cooling?: string
  shrinkDelay?: string
  listingInterval?: string
  eni?: Record<string, unknown>
}

export interface Deployment {
  name: string
  replicas: number
  changes?: Change[]
  rollouts?: { at: string; maxSurge?: string; maxUnavailable?: string }[]
  ready?: string
  lifetime?: string
  crashLoop?: { from: string; until?: string; after?: string; pods?: number }
  branch?: boolean
}

export interface Alternative {
  name: string
  settings?: Settings
  instanceTypes?: Record<string, string>
  counts?: Record<string, number>
  cidrs?: Record<string, string>
}

export interface Scenario {
  name?: string
  description?: string
  duration?: string
  sample?: string
  seed?: number
  subnets: Subnet[]
  nodes: NodeGroup[]
  settings?: Settings
  ec2?: { rateLimits?: number; latency?: string; attachTime?: string }
  workload?: { daemonPods?: number; deployments?: Deployment[] }
  alternatives?: Alternative[]
}

export interface Totals {
  peakHeld: number
  endHeld: number
  peakIdle: number
  meanIdle: number
  idleHours: number
  peakENIs: number
  leastFree: number
  calls: number
  throttled: number
  refused: number
  pods: number
  waited: number
  waiting: number
  pending: number
  wait: { p50: number; p99: number; max: number }
}

export interface Event {
  at: string
  kind: string
  on?: string
  text: string
  for?: string
  pods?: number
}

export interface Calls {
  action: string
  calls: number
  throttled: number
  subnetFull: number
  eniLimit: number
  otherErrors: number
}

export interface SubnetSeries {
  name: string
  cidr: string
  size: number
  others: number
  used: number[]
  warm: number[]
  cooling: number[]
  enis: number[]
  free: number[]
  ipv6?: number[]
}

export interface ResultSeries {
  at: number[]
  subnets: SubnetSeries[]
  nodes: number[]
  enis: number[]
  running: number[]
  waiting: number[]
  pending: number[]
  calls: number[]
  throttled: number[]
  refused: number[]
  branches: number[]
}

export interface Outcome {
  name: string
  totals: Totals
  events: Event[] | null
  calls: Calls[] | null
  series: ResultSeries
  stopped?: string
}

export interface Result {
  name?: string
  description?: string
  duration: string
  alternatives: Outcome[]
}

export interface InstanceType {
  type: string
  enis: number
  ipv4PerENI: number
  ipv6PerENI: number
  prefixes: boolean
  branches: number
  maxPods: number
}

/** What the server can simulate. */
export interface Abilities {
  types: InstanceType[]
  bounds: { nodes: number; pods: number; duration: string; alternatives: number }
  version: string
}

/** A reply that is not a success. */
export class Refusal extends Error {
  constructor(
    message: string,
    readonly fields: FieldError[],
  ) {
    super(message)
  }
}

/** How often a request is repeated while the server runs as many simulations as it may. */
const tries = 15

async function request<T>(path: string, init?: RequestInit, left = tries): Promise<T> {
  let response: Response
  try {
    response = await fetch(path, init)
  } catch (error) {
    if (init?.signal?.aborted) throw error
    throw new Refusal('The planner does not answer. Check that `berthctl plan --serve` is still running.', [])
  }
  if (response.status === 429 && left > 0) {
    await pause(Number(response.headers.get('Retry-After') ?? 2), init?.signal)
    return request(path, init, left - 1)
  }
  const body = (await response.json().catch(() => null)) as (T & { error?: string; fields?: { field: string; message: string }[] }) | null
  if (response.ok && body !== null) return body
  const fields = body?.fields?.map(({ field, message }) => ({ path: field, message })) ?? []
  const message = fields.length > 0 ? `The scenario has ${fields.length === 1 ? 'a mistake' : `${fields.length} mistakes`}.` : body?.error
  throw new Refusal(message ?? `The planner answered with status ${response.status}.`, fields)
}

function pause(seconds: number, signal?: AbortSignal | null): Promise<void> {
  return new Promise((done, failed) => {
    const timer = setTimeout(done, seconds * 1000)
    signal?.addEventListener('abort', () => {
      clearTimeout(timer)
      failed(signal.reason)
    })
  })
}

export const abilities = () => request<Abilities>('api/types')

/** The examples, whose durations the server writes with all units: 2h0m0s. */
export const examples = async () =>
  JSON.parse(JSON.stringify((await request<{ scenarios: Scenario[] }>('api/scenarios')).scenarios), (_, value: unknown) =>
    typeof value === 'string' && /^\d+[hm]\d[\dhms]*s$/.test(value) ? short(value) : value,
  ) as Scenario[]

export const simulate = (scenario: Scenario, signal: AbortSignal) =>
  request<Result>('api/simulate', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body: JSON.stringify(scenario), signal })
