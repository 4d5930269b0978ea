"""Creates the tables of Neutron in an empty database, then becomes neutron-server.

neutron-db-manage does the same in a hundred migrations.
"""
import sys
import time

from neutron.cmd.eventlet import server  # must be first: it monkey-patches blocking calls
from neutron.db.migration.models import head
import sqlalchemy

engine = sqlalchemy.create_engine(sys.argv[1])
while True:
    try:
        engine.connect().close()
        break
    except sqlalchemy.exc.OperationalError as e:
        print("waiting for the database:", e.orig, flush=True)
        time.sleep(0.1)
head.get_metadata().create_all(engine)
engine.dispose()
sys.argv = ["neutron-server"] + sys.argv[2:]
sys.exit(server.main())
