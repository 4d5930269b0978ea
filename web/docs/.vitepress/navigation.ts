import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import type { DefaultTheme } from 'vitepress'

type Item = DefaultTheme.SidebarItem

/** The pages that a Markdown text links to, in order. */
function pages(text: string): Item[] {
  return [...text.matchAll(/\[([^\]]+)\]\(([a-zA-Z0-9/_-]+)\.md\)/g)].map(([, title = '', path = '']) => ({
    text: /^(berth|kubectl|vpclab)/.test(title) ? title : title[0]?.toUpperCase() + title.slice(1),
    link: '/' + path.replace(/README$/, ''),
  }))
}

/**
 * The navigation is the index in docs/README.md: a group for each heading with links, a closed group for each line that
 * begins with a word and a colon, else the links themselves. A closed group leads to its first page: without a link of its
 * own it would be a button around the button that opens it, which screen readers cannot reach.
 */
export function sidebar(docs: string): Item[] {
  const index = readFileSync(join(docs, 'README.md'), 'utf8')
  const alerts = pages(readFileSync(join(docs, 'alerts', 'README.md'), 'utf8'))
    .filter((p) => p.link?.startsWith('/Berth'))
    .map((p) => ({ ...p, link: '/alerts' + p.link }))
  const groups: Item[] = []
  for (const section of index.split(/^## /m).slice(1)) {
    const [title = '', ...lines] = section.split('\n')
    const items: Item[] = []
    for (const entry of lines.join('\n').split(/^- /m).slice(1)) {
      const named = /^([A-Z][\w ]*): (?=[\s\S]*\]\()/.exec(entry)
      const found = pages(entry)
      if (!named) items.push(...found)
      else if (found.length === 1) items.push({ ...found[0], text: named[1] })
      else items.push({ text: named[1], link: found[0]?.link, collapsed: true, items: found })
    }
    const i = items.findIndex((p) => p.link === '/alerts/')
    if (i >= 0) items[i] = { ...items[i], collapsed: true, items: alerts }
    if (items.length > 0) groups.push({ text: title, items })
  }
  return groups
}
