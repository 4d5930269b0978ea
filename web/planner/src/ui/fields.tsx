import { createContext } from 'preact'
import type { ComponentChildren } from 'preact'
import { useContext } from 'preact/hooks'
import { Icon } from './icons'

/** The path of a field in a scenario, as the server's errors have it: alternatives[0].settings.eni.maxPods. */
export type Path = string

/** A part of a path: the name of a field, or the index in a list. */
type Step = string | number

function steps(path: Path): Step[] {
  return [...path.matchAll(/\[(\d+)\]|\["([^"]*)"\]|([^.[\]]+)/g)].map((match) => (match[1] !== undefined ? Number(match[1]) : (match[2] ?? match[3]!)))
}

/** The path of an entry of a map, whose key may have dots. */
export function entry(map: Path, key: string): Path {
  return /^[\w-]+$/.test(key) ? `${map}.${key}` : `${map}["${key}"]`
}

/** The value at a path, or undefined. */
export function get(document: unknown, path: Path): unknown {
  return steps(path).reduce<unknown>((value, step) => (value as Record<Step, unknown> | undefined)?.[step], document)
}

/** A copy of the document with another value at a path; undefined removes the field or the entry of the list. */
export function set<T>(document: T, path: Path, value: unknown): T {
  const put = (at: unknown, [step, ...rest]: Step[]): unknown => {
    if (step === undefined) return value
    if (typeof step === 'number') {
      const list = [...((at as unknown[] | undefined) ?? [])]
      if (rest.length === 0 && value === undefined) list.splice(step, 1)
      else list[step] = put(list[step], rest)
      return list
    }
    const { [step]: old, ...others } = (at ?? {}) as Record<string, unknown>
    const now = put(old, rest)
    return now === undefined ? others : at && step in (at as object) ? { ...(at as object), [step]: now } : { ...others, [step]: now }
  }
  return put(document, steps(path)) as T
}

/** An error of the server, about one field. */
export interface FieldError {
  path: Path
  message: string
}

/** The document that the fields below edit. */
export interface Editing {
  document: unknown
  errors: FieldError[]
  change(path: Path, value: unknown): void
}

export const Edit = createContext<Editing>({ document: {}, errors: [], change() {} })

/** The id of the element that edits a field. Error messages link to it. */
export function fieldId(path: Path): string {
  return `field-${path}`
}

interface FieldProps {
  path: Path
  label: string
  /** What to enter, below the field. */
  hint?: ComponentChildren
}

function useField(path: Path) {
  const { document, errors, change } = useContext(Edit)
  const own = errors.filter((error) => error.path === path || error.path.replace(/\[\d+\]$/, '') === path) // or about an entry of its list
  const id = fieldId(path)
  return {
    value: get(document, path),
    change: (value: unknown) => change(path, value),
    errors: own,
    id,
    aria: (hint: boolean) => ({
      'aria-invalid': own.length > 0 || undefined,
      'aria-describedby': [hint && `${id}-hint`, own.length > 0 && `${id}-error`].filter(Boolean).join(' ') || undefined,
    }),
  }
}

/** The hint and the errors of a field. */
function Notes({ field, hint }: { field: ReturnType<typeof useField>; hint?: ComponentChildren }) {
  return (
    <>
      {hint && (
        <p class="hint" id={`${field.id}-hint`}>
          {hint}
        </p>
      )}
      {field.errors.length > 0 && (
        <p class="error" id={`${field.id}-error`}>
          <Icon name="warning" /> {field.errors.map((error) => error.message).join('; ')}
        </p>
      )}
    </>
  )
}

function Labelled({ field, label, hint, children }: { field: ReturnType<typeof useField>; label: string; hint?: ComponentChildren; children: ComponentChildren }) {
  return (
    <div class={field.errors.length > 0 ? 'field bad' : 'field'}>
      <label for={field.id}>{label}</label>
      {children}
      <Notes field={field} hint={hint} />
    </div>
  )
}

/** A text; an empty one removes the field. With commit, it changes when the person leaves it. */
export function Text({ path, label, hint, placeholder, list, commit, multiline }: FieldProps & { placeholder?: string; list?: string; commit?: boolean; multiline?: boolean }) {
  const field = useField(path)
  const changed = (event: { currentTarget: { value: string } }) => field.change(event.currentTarget.value || (commit ? '' : undefined))
  const common = { id: field.id, placeholder, value: String(field.value ?? ''), ...(commit ? { onChange: changed } : { onInput: changed }), ...field.aria(Boolean(hint)) }
  return (
    <Labelled field={field} label={label} hint={hint}>
      {multiline ? <textarea rows={3} {...common} /> : <input type="text" autocomplete="off" spellcheck={false} list={list} {...common} />}
    </Labelled>
  )
}

/** A number; an empty field removes it. */
export function Count({ path, label, hint, placeholder }: FieldProps & { placeholder?: string }) {
  const field = useField(path)
  return (
    <Labelled field={field} label={label} hint={hint}>
      <input
        id={field.id}
        type="number"
        min="0"
        step="any"
        inputMode="numeric"
        placeholder={placeholder}
        value={field.value === undefined ? '' : String(field.value)}
        onInput={(event) => field.change(event.currentTarget.value === '' ? undefined : event.currentTarget.valueAsNumber)}
        {...field.aria(Boolean(hint))}
      />
    </Labelled>
  )
}

export function Choice({ path, label, hint, options }: FieldProps & { options: [value: string, label: string][] }) {
  const field = useField(path)
  return (
    <Labelled field={field} label={label} hint={hint}>
      <select id={field.id} value={String(field.value ?? '')} onChange={(event) => field.change(event.currentTarget.value || undefined)} {...field.aria(Boolean(hint))}>
        {options.map(([value, text]) => (
          <option key={value} value={value}>
            {text}
          </option>
        ))}
      </select>
    </Labelled>
  )
}

/** Some of a few names, in the order of the options. */
export function Several({ path, label, hint, options, optional }: FieldProps & { options: string[]; optional?: boolean }) {
  const field = useField(path)
  const chosen = (field.value ?? []) as string[]
  const toggle = (name: string) => {
    const next = [...new Set([...options, ...chosen])].filter((each) => chosen.includes(each) !== (each === name))
    field.change(next.length > 0 || !optional ? next : undefined)
  }
  return (
    <fieldset class={field.errors.length > 0 ? 'field bad' : 'field'} id={field.id} tabIndex={-1} {...field.aria(Boolean(hint))}>
      <legend class="name">{label}</legend>
      <div class="radios">
        {[...new Set([...options, ...chosen])].map((name) => (
          <label key={name}>
            <input type="checkbox" checked={chosen.includes(name)} onChange={() => toggle(name)} /> {name}
          </label>
        ))}
      </div>
      <Notes field={field} hint={hint} />
    </fieldset>
  )
}

/** A field that is true or unset. With onChange, the children are shown while the field has any value. */
export function Switch({ path, label, hint, onChange, children }: FieldProps & { onChange?: (on: boolean) => void; children?: ComponentChildren }) {
  const field = useField(path)
  const on = onChange ? field.value !== undefined : field.value === true
  return (
    <div class={field.errors.length > 0 ? 'field switch bad' : 'field switch'}>
      <input
        id={field.id}
        type="checkbox"
        checked={on}
        onChange={(event) => (onChange ? onChange(event.currentTarget.checked) : field.change(event.currentTarget.checked || undefined))}
        {...field.aria(Boolean(hint))}
      />
      <label for={field.id}>{label}</label>
      <Notes field={field} hint={hint} />
      {on && children && <div class="inside">{children}</div>}
    </div>
  )
}
