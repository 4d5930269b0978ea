import { useContext } from 'preact/hooks'
import { Choice, Count, Edit, type Path, Several, Switch, Text, get } from '../ui/fields'

const warm = [
  ['warmENITarget', 'WARM_ENI_TARGET'],
  ['warmIPTarget', 'WARM_IP_TARGET'],
  ['minimumIPTarget', 'MINIMUM_IP_TARGET'],
  ['warmPrefixTarget', 'WARM_PREFIX_TARGET'],
] as const

const watermarks = [
  ['minAllocate', 'minAllocate'],
  ['preAllocate', 'preAllocate'],
  ['maxAboveWatermark', 'maxAboveWatermark'],
] as const

/** What Berth does without any target or watermark, in node and operator mode. */
const defaults: Record<string, string> = { warmENITarget: '1', preAllocate: '8' }

/** The settings of Berth that an alternative has. Targets and watermarks exclude each other. */
export function SettingsFields({ path, subnets, nameless }: { path: Path; subnets: string[]; nameless?: boolean }) {
  const { document, errors, change } = useContext(Edit)
  const eni = `${path}.eni`
  const has = (fields: readonly (readonly [string, string])[]) =>
    fields.some(([field]) => get(document, `${eni}.${field}`) !== undefined || errors.some((error) => error.path === `${eni}.${field}`))
  const kind = has(watermarks) ? 'watermarks' : has(warm) || get(document, `${path}.mode`) !== 'operator' ? 'warm' : 'watermarks'
  const unset = !has(warm) && !has(watermarks)
  const choose = (next: string) => {
    const { ...fields } = (get(document, eni) ?? {}) as Record<string, unknown>
    for (const [field] of [...warm, ...watermarks]) delete fields[field]
    change(eni, { ...fields, ...(next === 'warm' ? { warmENITarget: 1 } : { preAllocate: 8 }) })
  }
  return (
    <>
      <div class="grid">
        {!nameless && <Text path={`${path}.name`} label="Name in the results" placeholder="as given" />}
        <Choice
          path={`${path}.mode`}
          label="Mode"
          options={[
            ['', 'Default (node)'],
            ['node', 'Node: each node calls EC2'],
            ['operator', 'Operator: one caller'],
          ]}
        />
        <Choice
          path={`${eni}.ipFamilies`}
          label="IP families of pods"
          options={[
            ['', 'Default (IPv4)'],
            ['ipv4', 'IPv4'],
            ['ipv6', 'IPv6'],
            ['dual', 'Dual-stack'],
          ]}
        />
      </div>
      <fieldset id={`field-${eni}`} tabIndex={-1}>
        <legend class="name">Addresses that nodes keep available</legend>
        <div class="radios">
          {(['warm', 'watermarks'] as const).map((each) => (
            <label key={each}>
              <input type="radio" name={`${path}-kind`} checked={kind === each} onChange={() => choose(each)} />
              {each === 'warm' ? 'Warm targets, as in the Amazon VPC CNI' : 'Watermarks'}
            </label>
          ))}
        </div>
        <div class="grid">
          {(kind === 'warm' ? warm : watermarks).map(([field, label]) => (
            <Count key={field} path={`${eni}.${field}`} label={label} placeholder={unset ? defaults[field] : undefined} />
          ))}
        </div>
      </fieldset>
      <Switch path={`${eni}.prefixDelegation`} label="Prefix delegation" hint="/28 prefixes instead of single addresses" />
      <details class="item">
        <summary>More settings</summary>
        <div class="body">
          <div class="grid">
            <Count path={`${eni}.maxENIs`} label="Max. ENIs of a node" placeholder="by type" />
            <Count path={`${eni}.maxPods`} label="Max. pods of a node" placeholder="no limit" />
            <Count path={`${eni}.maxAllocate`} label="Max. addresses of a node" placeholder="no limit" />
            <Count path={`${eni}.firstInterfaceIndex`} label="First ENI for pods" hint="1 reserves eth0 for the node" />
            <Text path={`${path}.cooling`} label="Cooling time" placeholder="30s" hint="Until an address is used again" />
            <Text path={`${path}.shrinkDelay`} label="Shrink delay" placeholder="1m" />
            <Text path={`${path}.listingInterval`} label="Listing interval" placeholder="1m" />
          </div>
          <Switch path={`${eni}.usePrimaryAddress`} label="Pods also get primary addresses of ENIs" />
          <Switch path={`${eni}.trunk`} label="Trunk ENI for branch interfaces" hint="Operator mode" />
          <Several path={`${eni}.subnetIDs`} label="Subnets of new ENIs" options={subnets} hint="None selected: those of the nodes" optional />
        </div>
      </details>
    </>
  )
}
