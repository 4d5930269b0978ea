import type { ComponentChildren } from 'preact'
import { useContext, useEffect, useRef } from 'preact/hooks'
import { Edit, type Path, fieldId, get } from './fields'
import { Icon } from './icons'

/** A part of the form that can be folded. */
export function Section({ path, title, count, open, children }: { path: Path; title: string; count?: number; open?: boolean; children: ComponentChildren }) {
  return (
    <details class="section panel" open={open} id={fieldId(path)} tabIndex={-1}>
      <summary>
        <h3>{title}</h3>
        {count !== undefined && <span class="count">{count}</span>}
      </summary>
      <div class="body">{children}</div>
    </details>
  )
}

interface ListProps<T> {
  path: Path
  /** What an entry is: "subnet". */
  what: string
  /** A new entry. */
  create: (entries: T[]) => T
  title: (entry: T) => string
  /** What the title leaves out, shown while the entry is folded. */
  about?: (entry: T) => string
  children: (path: Path, entry: T) => ComponentChildren
}

/** A list whose entries can be added, copied and removed. */
export function List<T extends object>({ path, what, create, title, about, children }: ListProps<T>) {
  const { document, change } = useContext(Edit)
  const entries = (get(document, path) as T[] | undefined) ?? []
  const root = useRef<HTMLDivElement>(null)
  const focus = useRef<string | null>(null)

  // The focus goes to an entry that was added, and to the button when one was removed.
  useEffect(() => {
    if (focus.current === null) return
    const target = focus.current === '' ? root.current?.querySelector<HTMLElement>('.add') : globalThis.document.getElementById(focus.current)
    if (target instanceof HTMLDetailsElement) target.open = true
    ;(target?.querySelector('summary') ?? target)?.focus()
    focus.current = null
  })
  const add = (entry: T) => {
    focus.current = fieldId(`${path}[${entries.length}]`)
    change(path, [...entries, entry])
  }
  const remove = (i: number) => {
    focus.current = ''
    const left = entries.filter((_, j) => j !== i)
    change(path, left.length > 0 ? left : undefined)
  }
  return (
    <div class="body-list" ref={root}>
      {entries.map((entry, i) => {
        const at = `${path}[${i}]`
        const name = title(entry) || `${what} ${i + 1}`
        return (
          <details class="item" key={i} id={fieldId(at)} tabIndex={-1}>
            <summary>
              {name}
              {about && <span class="what">{about(entry)}</span>}
            </summary>
            <div class="body">
              {children(at, entry)}
              <div class="tools">
                <button type="button" class="quiet small" onClick={() => add({ ...entry, ...named(create(entries)) })}>
                  <Icon name="copy" /> Copy<span class="hidden"> {name}</span>
                </button>
                <button type="button" class="quiet small" onClick={() => remove(i)}>
                  <Icon name="remove" /> Remove<span class="hidden"> {name}</span>
                </button>
              </div>
            </div>
          </details>
        )
      })}
      <button type="button" class="add" onClick={() => add(create(entries))}>
        <Icon name="add" /> Add {what}
      </button>
    </div>
  )
}

/** The name of a new entry, for a copy of another one. */
function named(created: object): object {
  return 'name' in created ? { name: created.name } : {}
}

interface RowsProps<T> {
  path: Path
  legend: string
  what: string
  create: (entries: T[]) => T
  children: (path: Path) => ComponentChildren
}

/** A list of short entries, each in one row: "at 2h, 40 replicas". */
export function Rows<T extends object>({ path, legend, what, create, children }: RowsProps<T>) {
  const { document, change } = useContext(Edit)
  const entries = (get(document, path) as T[] | undefined) ?? []
  const add = useRef<HTMLButtonElement>(null)
  return (
    <fieldset id={fieldId(path)} tabIndex={-1}>
      <legend class="name">{legend}</legend>
      {entries.map((_, i) => (
        <div class="row" key={i} id={fieldId(`${path}[${i}]`)} tabIndex={-1}>
          {children(`${path}[${i}]`)}
          <button
            type="button"
            class="quiet small"
            aria-label={`Remove ${what} ${i + 1}`}
            onClick={() => {
              add.current?.focus()
              change(path, entries.length > 1 ? entries.filter((_, j) => j !== i) : undefined)
            }}
          >
            <Icon name="remove" />
          </button>
        </div>
      ))}
      <button type="button" class="small" ref={add} onClick={() => change(path, [...entries, create(entries)])}>
        <Icon name="add" /> Add {what}
      </button>
    </fieldset>
  )
}

/** Shows the element that edits a field, or the closest part of the form around it, and moves the focus there. */
export function reveal(path: Path): void {
  for (let at = path; at !== ''; at = at.replace(/(\.[\w-]+|\["[^"]*"\]|\[\d+\]|^[\w-]+)$/, '')) {
    const element = globalThis.document.getElementById(fieldId(at))
    if (!element) continue
    for (let part: HTMLElement | null = element; part; part = part.parentElement) {
      if (part instanceof HTMLDetailsElement) part.open = true
    }
    element.focus()
    element.scrollIntoView({ block: 'center' })
    return
  }
}
