#!/usr/bin/python3
"""test_axe.py FOLDER: axe-core finds nothing on the page, in light and dark, wide and narrow."""
import glob
import subprocess
import sys
import zipfile

from browser import Page, require

PACKAGE = 'axe-playwright-python==0.1.8' # brings axe-core 4.12.1 along


def axe_source(folder):
    """The text of axe.min.js, from PyPI."""
    tools = folder + '/../page-tools'
    fetch = ['python3', '-m', 'pip', 'download', '--quiet', '--no-deps', '--dest', tools, PACKAGE]
    wheel = glob.glob(tools + '/*.whl')
    if not wheel:
        done = subprocess.run(fetch, capture_output=True, text=True, check=False)
        wheel = glob.glob(tools + '/*.whl')
        if not wheel:
            print(f'SKIP axe-core: {PACKAGE} cannot be had: {done.stderr.strip()[-200:]}')
            sys.exit(77)
    with zipfile.ZipFile(wheel[0]) as archive:
        name = next(each for each in archive.namelist() if each.endswith('axe.min.js'))
        return archive.read(name).decode()


def violations(page, source):
    page.run(source)
    return page.driver.execute_async_script('''
        const done = arguments[0];
        document.querySelectorAll('details').forEach((each) => { each.open = true; });
        axe.run(document).then((result) => done(result.violations.map((each) => each.id + ': '
            + each.help + ' ' + each.nodes.slice(0, 3).map((node) => node.html).join(' | '))));''')


def main():
    require()
    folder, bad = sys.argv[1], 0
    source = axe_source(folder)
    page = Page(folder)
    try:
        for width in ('desk', 'phone'):
            for dark in (False, True):
                page.look(width, dark, still=True)
                page.open()
                page.click('#bench-start')
                page.wait('return document.querySelector("#bench-words").textContent'
                          '.startsWith("Done")', 60)
                found = violations(page, source)
                bad += len(found)
                print(f'axe: {width} {"dark" if dark else "light"}: {len(found)} violations')
                print('\n'.join(found))
    finally:
        page.close()
    sys.exit(bad > 0)


if __name__ == '__main__':
    main()
