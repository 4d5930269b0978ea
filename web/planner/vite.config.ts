import { existsSync, readFileSync } from 'node:fs'
import { type Plugin, defineConfig } from 'vite'

/** Writes the licences of all npm packages in the bundle. */
function licences(): Plugin {
  return {
    name: 'licences',
    generateBundle(_, bundle) {
      const folders = new Set<string>(['@fontsource-variable/inter']) // only CSS refers to the font
      for (const chunk of Object.values(bundle)) {
        for (const id of chunk.type === 'chunk' ? chunk.moduleIds : []) {
          const name = /node_modules\/((?:@[^/]+\/)?[^/]+)/.exec(id)?.[1]
          if (name) folders.add(name)
        }
      }
      const texts = [...folders].sort().map((name) => {
        const folder = new URL(`../node_modules/${name}/`, import.meta.url)
        const file = ['LICENSE', 'LICENSE.md', 'LICENSE.txt'].map((each) => new URL(each, folder)).find((each) => existsSync(each))
        if (!file) throw new Error(`${name}: no licence file`)
        const { version } = JSON.parse(readFileSync(new URL('package.json', folder), 'utf8')) as { version: string }
        return `${name} ${version}\n\n${readFileSync(file, 'utf8').trim()}\n`
      })
      this.emitFile({ type: 'asset', fileName: 'licenses.txt', source: texts.join(`\n${'-'.repeat(72)}\n\n`) })
    },
  }
}

// The bundle is committed and embedded in berthctl (embed.go). File names carry no hash and
// nothing depends on the machine, so a build of the same sources gives the same bytes.
export default defineConfig({
  base: './',
  logLevel: 'warn',
  plugins: [licences()],
  build: {
    target: 'es2022',
    cssTarget: 'chrome123', // keeps light-dark()
    assetsInlineLimit: 0, // the Content-Security-Policy allows no data: URLs for scripts and fonts
    modulePreload: { polyfill: false },
    cssCodeSplit: false,
    rollupOptions: {
      output: {
        entryFileNames: 'planner.js',
        assetFileNames: '[name][extname]',
        inlineDynamicImports: true,
      },
    },
  },
  esbuild: { jsx: 'automatic', jsxImportSource: 'preact', legalComments: 'none' },
})
