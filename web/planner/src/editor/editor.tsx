import type { ComponentChildren } from 'preact'
import { useContext } from 'preact/hooks'
import type { Abilities, Alternative, Deployment, NodeGroup, Scenario, Subnet } from '../api'
import { freeName } from '../scenario'
import { Count, Edit, type Path, Several, Switch, Text, entry } from '../ui/fields'
import { short } from '../ui/format'
import { List, Rows, Section } from '../ui/list'
import { SettingsFields } from './settings'

/** The form for a scenario. */
export function Editor({ scenario, abilities }: { scenario: Scenario; abilities?: Abilities }) {
  const workload = scenario.workload ?? {}
  return (
    <div class="editor">
      <datalist id="instance-types">
        {abilities?.types.map((type) => (
          <option key={type.type} value={type.type}>
            {`${type.enis} ENIs with ${type.ipv4PerENI} addresses each`}
          </option>
        ))}
      </datalist>
      <Section path="scenario" title="Scenario" open>
        <Text path="name" label="Name" />
        <Text path="description" label="Description" multiline />
        <div class="grid">
          <Text path="duration" label="Simulated time" placeholder="24h" hint={abilities && `At most ${short(abilities.bounds.duration)}`} />
          <Text path="sample" label="Time between points" placeholder="240 points" hint="Such as 5m" />
          <Count path="seed" label="Random seed" placeholder="0" />
        </div>
      </Section>
      <Section path="subnets" title="Subnets" count={scenario.subnets.length} open>
        <List<Subnet>
          path="subnets"
          what="subnet"
          create={(all) => ({ name: freeName('subnet', names(all)), cidr: `10.0.${all.length}.0/24` })}
          title={(subnet) => subnet.name}
          about={(subnet) => [subnet.cidr, subnet.ipv6 && 'IPv6'].filter(Boolean).join(', ')}
        >
          {(at) => (
            <>
              <div class="grid">
                <Text path={`${at}.name`} label="Name" commit />
                <Text path={`${at}.cidr`} label="IPv4 CIDR" placeholder="10.0.0.0/24" />
                <Count path={`${at}.used`} label="Used by others" placeholder="0" hint="Load balancers, databases" />
                <Text path={`${at}.zone`} label="Zone" placeholder="a" />
              </div>
              <Switch path={`${at}.ipv6`} label="Has an IPv6 /64" />
            </>
          )}
        </List>
      </Section>
      <Section path="nodes" title="Node groups" count={scenario.nodes.length} open>
        <List<NodeGroup>
          path="nodes"
          what="node group"
          create={(all) => ({ name: freeName('workers', names(all)), instanceType: 'm5.large', count: 3, subnets: scenario.subnets.slice(0, 1).map((subnet) => subnet.name) })}
          title={(group) => group.name}
          about={(group) => `${group.count ?? 0} × ${group.instanceType}`}
        >
          {(at, group) => (
            <>
              <div class="grid">
                <Text path={`${at}.name`} label="Name" commit />
                <Text path={`${at}.instanceType`} label="Instance type" list="instance-types" hint={capacity(abilities, group.instanceType)} />
                <Count path={`${at}.count`} label="Nodes" />
                <Count path={`${at}.maxPods`} label="Kubelet max-pods" placeholder="by type" />
              </div>
              <Several path={`${at}.subnets`} label="Subnets, in turn" options={names(scenario.subnets)} />
              <Rows path={`${at}.changes`} legend="Scaling" what="change" create={(all) => ({ at: `${all.length + 1}h`, count: group.count })}>
                {(row) => (
                  <>
                    <Text path={`${row}.at`} label="At" />
                    <Count path={`${row}.count`} label="Nodes" />
                  </>
                )}
              </Rows>
              <Optional path={`${at}.replace`} label="Replace nodes regularly" initial={{ every: '6h', nodes: 1 }}>
                <div class="grid">
                  <Text path={`${at}.replace.every`} label="Every" />
                  <Count path={`${at}.replace.nodes`} label="Nodes at once" placeholder="1" />
                </div>
              </Optional>
            </>
          )}
        </List>
      </Section>
      <Section path="settings" title="Settings" open>
        <SettingsFields path="settings" subnets={names(scenario.subnets)} />
      </Section>
      <Section path="workload" title="Workload" count={workload.deployments?.length ?? 0} open>
        <Count path="workload.daemonPods" label="DaemonSet pods on each node" placeholder="0" hint="Those with an address of their own" />
        <List<Deployment>
          path="workload.deployments"
          what="deployment"
          create={(all) => ({ name: freeName('web', names(all)), replicas: 10 })}
          title={(deployment) => deployment.name}
          about={(deployment) => `${deployment.replicas ?? 0} replicas`}
        >
          {(at, deployment) => <DeploymentFields at={at} deployment={deployment} />}
        </List>
      </Section>
      <Section path="ec2" title="EC2">
        <div class="grid">
          <Count path="ec2.rateLimits" label="Rate limits" placeholder="1" hint="Factor on EC2's own; 0: none" />
          <Text path="ec2.latency" label="Latency of calls" placeholder="150ms" />
          <Text path="ec2.attachTime" label="Time to attach an ENI" placeholder="2s" />
        </div>
      </Section>
      <Section path="alternatives" title="Alternatives" count={scenario.alternatives?.length ?? 0} open>
        <p class="hint">Each alternative is the same scenario with other settings. The results show them side by side.</p>
        <List<Alternative>
          path="alternatives"
          what="alternative"
          create={(all) => ({ name: freeName('alternative', names(all)), settings: structuredClone({ ...scenario.settings, name: undefined }) })}
          title={(alternative) => alternative.name}
        >
          {(at) => <AlternativeFields at={at} scenario={scenario} />}
        </List>
      </Section>
    </div>
  )
}

function DeploymentFields({ at, deployment }: { at: Path; deployment: Deployment }) {
  return (
    <>
      <div class="grid">
        <Text path={`${at}.name`} label="Name" />
        <Count path={`${at}.replicas`} label="Replicas" />
        <Text path={`${at}.ready`} label="Time to readiness" placeholder="5s" />
        <Text path={`${at}.lifetime`} label="Lifetime of a pod" placeholder="for ever" hint="For jobs" />
      </div>
      <Switch path={`${at}.branch`} label="Pods have branch interfaces" hint="Needs operator mode and a trunk ENI" />
      <Rows path={`${at}.changes`} legend="Scaling" what="change" create={(all) => ({ at: `${all.length + 1}h`, count: deployment.replicas })}>
        {(row) => (
          <>
            <Text path={`${row}.at`} label="At" />
            <Count path={`${row}.count`} label="Replicas" />
          </>
        )}
      </Rows>
      <Rows path={`${at}.rollouts`} legend="Rolling updates" what="rolling update" create={(all) => ({ at: `${all.length + 1}h` })}>
        {(row) => (
          <>
            <Text path={`${row}.at`} label="At" />
            <Text path={`${row}.maxSurge`} label="Max surge" placeholder="25%" />
            <Text path={`${row}.maxUnavailable`} label="Unavailable" placeholder="25%" />
          </>
        )}
      </Rows>
      <Optional path={`${at}.crashLoop`} label="Pods fail" initial={{ from: '1h', until: '2h' }}>
        <div class="grid">
          <Text path={`${at}.crashLoop.from`} label="From" placeholder="0s" />
          <Text path={`${at}.crashLoop.until`} label="Until" placeholder="the end" />
          <Text path={`${at}.crashLoop.after`} label="After running for" placeholder="1s" />
          <Count path={`${at}.crashLoop.pods`} label="Pods that fail" placeholder="all" />
        </div>
      </Optional>
    </>
  )
}

function AlternativeFields({ at, scenario }: { at: Path; scenario: Scenario }) {
  return (
    <>
      <Text path={`${at}.name`} label="Name" />
      <Optional path={`${at}.settings`} label="Other settings" initial={{ ...scenario.settings, name: undefined }}>
        <SettingsFields path={`${at}.settings`} subnets={names(scenario.subnets)} nameless />
      </Optional>
      {scenario.nodes.map((group) => (
        <fieldset key={group.name}>
          <legend class="name">Node group {group.name}</legend>
          <div class="grid">
            <Text path={entry(`${at}.instanceTypes`, group.name)} label="Instance type" placeholder={group.instanceType} list="instance-types" />
            <Count path={entry(`${at}.counts`, group.name)} label="Nodes" placeholder={String(group.count ?? 0)} />
          </div>
        </fieldset>
      ))}
      <fieldset>
        <legend class="name">IPv4 CIDRs</legend>
        <div class="grid">
          {scenario.subnets.map((subnet) => (
            <Text key={subnet.name} path={entry(`${at}.cidrs`, subnet.name)} label={subnet.name} placeholder={subnet.cidr} />
          ))}
        </div>
      </fieldset>
    </>
  )
}

/** Fields of an object that a scenario may leave out. */
function Optional({ path, label, initial, children }: { path: Path; label: string; initial: object; children: ComponentChildren }) {
  const { change } = useContext(Edit)
  return (
    <Switch path={path} label={label} onChange={(on) => change(path, on ? structuredClone(initial) : undefined)}>
      {children}
    </Switch>
  )
}

const names = (list: { name: string }[]) => list.map((each) => each.name)

function capacity(abilities: Abilities | undefined, name: string): string | undefined {
  const type = abilities?.types.find((each) => each.type === name)
  if (!type) return undefined
  const parts = [`${type.enis} ENIs × ${type.ipv4PerENI} IPv4`, `max-pods ${type.maxPods}`]
  if (type.branches > 0) parts.push(`${type.branches} branches`)
  return parts.join(', ')
}
