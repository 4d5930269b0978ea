import { readdirSync, readFileSync, statSync, writeFileSync } from 'node:fs'
import { dirname, join, relative, resolve, sep } from 'node:path'
import { PLACEHOLDER, relocatePage } from './relocate'

/** Makes the built site independent of its path, and fails if a page links to a file or an anchor that is missing. */
export function finish(dir: string): void {
  const files = readdirSync(dir, { recursive: true, encoding: 'utf8' }).filter((f) => statSync(join(dir, f)).isFile())
  const anchors = new Map<string, Set<string>>()
  for (const file of files.filter((f) => f.endsWith('.html'))) {
    const html = relocatePage(readFileSync(join(dir, file), 'utf8'), file.split(sep).length - 1)
    writeFileSync(join(dir, file), html)
    anchors.set(resolve(dir, file), new Set([...html.matchAll(/\sid="([^"]+)"/g)].map((m) => m[1]!)))
  }
  const problems: string[] = []
  for (const file of files) {
    const text = /\.(html|js|css)$/.test(file) ? readFileSync(join(dir, file), 'utf8') : ''
    for (const found of text.matchAll(new RegExp(`.{0,80}${PLACEHOLDER}`, 'g'))) {
      if (!file.includes('localSearchIndex')) {
        problems.push(`${file}: depends on its path: ${found[0]}`)
      }
    }
    if (!file.endsWith('.html')) continue
    if (file !== '404.html' && !/<h1[\s>]/.test(text)) problems.push(`${file}: has no title: it could not be rendered`)
    for (const [, element = '', attr = ''] of text.matchAll(/<(\w+)[^>]*\s(?:href|src)="([^"]+)"/g)) {
      const link = attr.replaceAll('&amp;', '&')
      if (/^(https?:|data:|mailto:)/.test(link)) {
        if (element !== 'a' && link.startsWith('http')) problems.push(`${file}: loads ${link}`)
        continue
      }
      const [path = '', hash] = link.split('#')
      let target = path ? resolve(dir, dirname(file), path) : resolve(dir, file)
      if (path.endsWith('/')) target = join(target, 'index.html')
      if (!statSync(target, { throwIfNoEntry: false })?.isFile()) problems.push(`${file}: link to ${link}: no such file`)
      else if (hash && !anchors.get(target)?.has(decodeURIComponent(hash))) problems.push(`${file}: link to ${link}: no such heading in ${relative(dir, target)}`)
    }
  }
  if (problems.length > 0) throw new Error(`${problems.length} problems in the built site:\n${[...new Set(problems)].slice(0, 50).join('\n')}`)
}
