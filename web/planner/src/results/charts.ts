// Turns the series of a result into charts. All numbers are the simulation's.
import type { Event, Outcome, Result, ResultSeries } from '../api'
import type { Mark, Series } from '../ui/chart'
import type { Group } from './group'

/** The kinds of events that are limits: internal/planner/result.go. */
const limitNames: Record<string, string> = {
  'subnet-full': 'Subnet full',
  'eni-limit': 'ENI limit',
  'max-pods': 'Kubelet max-pods',
  'address-cap': 'Cap of the settings',
  throttled: 'EC2 rate limit',
  'branch-limit': 'Branch limit',
  cooling: 'Addresses cooling',
  other: 'Other',
}

/** The name of a limit, or undefined for other events. */
export const limitName = (event: Event): string | undefined => limitNames[event.kind]

/** A duration of Go, such as 1h0m5s, in seconds. */
export function seconds(duration: string): number {
  const units: Record<string, number> = { h: 3600, m: 60, s: 1, ms: 1e-3, µs: 1e-6, ns: 1e-9 }
  let sum = 0
  for (const [, value, unit] of duration.matchAll(/([\d.]+)(h|ms|m|s|µs|ns)/g)) sum += Number(value) * units[unit!]!
  return sum
}

/** The colour and dashes of an alternative, the same in all charts. */
export function styleOf(alternative: number): { colour: string; dash?: number[] } {
  const dashes = [undefined, [10, 4], [2, 4], [10, 4, 2, 4], [6, 6], [14, 4]]
  return { colour: `--line${(alternative % 6) + 1}`, dash: dashes[alternative % 6] }
}

const marks = (outcome: Outcome, of: (event: Event) => boolean): Mark[] =>
  (outcome.events ?? []).filter((event) => limitName(event) && of(event)).map((event) => ({ seconds: seconds(event.at), label: event.text }))

/** For each subnet, the addresses in each state, one chart an alternative. */
export function subnets(result: Result): Group[] {
  const names = [...new Set(result.alternatives.flatMap((outcome) => outcome.series.subnets.map((subnet) => subnet.name)))]
  const groups: Group[] = []
  for (const name of names) {
    const found = result.alternatives.flatMap((outcome) => {
      const subnet = outcome.series.subnets.find((each) => each.name === name)
      return subnet ? [{ outcome, subnet }] : []
    })
    const ipv4 = found.filter(({ subnet }) => subnet.size > 0)
    if (ipv4.length > 0) {
      groups.push({
        title: `Subnet ${name}`,
        // Free addresses would hide the others in a subnet that stays almost empty.
        hidden: ipv4.every(({ subnet }) => Math.min(...subnet.free) > subnet.size / 2) ? ['Free'] : [],
        charts: ipv4.map(({ outcome, subnet }) => ({
          title: outcome.name,
          unit: `addresses of ${subnet.cidr}`,
          times: outcome.series.at,
          stacked: true,
          series: [
            { label: 'Free', values: subnet.free, colour: '--free' },
            { label: 'Warm', values: subnet.warm, colour: '--warm' },
            { label: 'Cooling', values: subnet.cooling, colour: '--cooling' },
            { label: 'Used', values: subnet.used, colour: '--used' },
            { label: 'ENIs', values: subnet.enis, colour: '--enis' },
            { label: 'Others', values: outcome.series.at.map(() => subnet.others), colour: '--others' },
          ],
          marks: marks(outcome, (event) => event.on === name),
        })),
      })
    }
    const ipv6 = found.filter(({ subnet }) => subnet.ipv6)
    if (ipv6.length > 0) {
      groups.push({
        title: `Subnet ${name}, IPv6`,
        charts: [
          {
            title: 'IPv6 addresses of pods',
            unit: 'addresses',
            times: ipv6[0]!.outcome.series.at,
            series: ipv6.map(({ outcome, subnet }) => ({ label: outcome.name, values: subnet.ipv6!, ...styleOf(result.alternatives.indexOf(outcome)) })),
          },
        ],
      })
    }
  }
  return groups
}

const counts: [key: keyof Omit<ResultSeries, 'at' | 'subnets'>, title: string, unit: string][] = [
  ['enis', 'ENIs', 'attached or being attached'],
  ['calls', 'EC2 calls', 'since the point before'],
  ['throttled', 'Throttled calls', 'refused because of rate limits, since the point before'],
  ['refused', 'Refused calls', 'for other reasons, since the point before'],
  ['waiting', 'Pods waiting for an address', 'pods'],
  ['pending', 'Pending pods', 'waiting for a node'],
  ['running', 'Running pods', 'with an address'],
  ['nodes', 'Nodes', 'nodes'],
  ['branches', 'Branch interfaces', 'associated'],
]

/** Values of the cluster over time, with a line for each alternative, and the names of those that are always 0. */
export function lines(result: Result): { group: Group; zero: string[] } {
  const group: Group = { title: 'ENIs, calls and pods', charts: [] }
  const zero: string[] = []
  for (const [key, title, unit] of counts) {
    const series: Series[] = result.alternatives.map((outcome, i) => ({ label: outcome.name, values: outcome.series[key], ...styleOf(i) }))
    if (series.every(({ values }) => values.every((value) => value === 0))) zero.push(title.toLowerCase().replace('ec2', 'EC2').replace('enis', 'ENIs'))
    else group.charts.push({ title, unit, times: longest(result), series })
  }
  return { group, zero }
}

/** The times of all alternatives; one that ended early has fewer. */
const longest = (result: Result): number[] => result.alternatives.map((outcome) => outcome.series.at).reduce((a, b) => (b.length > a.length ? b : a))
